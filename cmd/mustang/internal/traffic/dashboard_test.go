// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath/kept"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

const dashboard = "../../../../packaging/grafana/mustang.json"

// expressions returns the queries of the dashboard by their panels, for one instance and the rate of some seconds.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	text := testkit.Must(os.ReadFile(dashboard))(t)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	testkit.Succeed(t, json.Unmarshal(text, &d))
	all := map[string]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.RefID] = strings.NewReplacer("$__rate_interval", "5s", "$instance", ".*").Replace(target.Expr)
		}
	}
	testkit.Require(t, len(all) >= 8, "hardly any queries: %v", all)
	return all
}

// start runs a metrics command in a network namespace until the test ends.
func (l *lab) metrics(ns *netns.Namespace, args ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error {
			cmd := metricsCommand(&cli.Config{Environment: cli.Environment{Stdout: io.Discard, Stderr: io.Discard},
				BPFRoot: l.root})
			cmd.SetArgs(args)
			return cmd.ExecuteContext(ctx)
		})
	}()
	l.t.Cleanup(func() {
		cancel()
		err := <-ended
		testkit.Check(l.t, err == nil, "%v", err)
	})
}

// query returns the number of series that a Prometheus in a network namespace has of an expression.
func query(client *http.Client, expression string) (int, error) {
	answer, err := client.Get("http://127.0.0.1:9090/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var body struct {
		Error string
		Data  struct{ Result []any }
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return 0, err
	}
	if body.Error != "" {
		return 0, errors.New(body.Error)
	}
	return len(body.Data.Result), nil
}

// TestDashboard has Prometheus read mustang metrics, and find something for each query of the dashboard.
func TestDashboard(t *testing.T) {
	testkit.RequireTool(t, "prometheus")
	l := newLab(t, kept.Root)
	l.serve(service.Service{Protocol: service.UDP}, served, portB)
	fromA(portA, served)(l)
	l.metrics(l.host, "--listen", ":9763", "--services", "5")
	dir := t.TempDir()
	config := "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: mustang, static_configs: [{targets: " +
		"['127.0.0.1:9763']}]}]\n"
	testkit.Succeed(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	prometheus := exec.Command("prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	var log bytes.Buffer
	prometheus.Stderr = &log
	testkit.Succeed(t, l.host.Do(prometheus.Start))
	defer func() {
		_ = prometheus.Process.Kill()
		_ = prometheus.Wait()
	}()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: func(_ context.Context,
		network, addr string) (net.Conn, error) {
		return testkit.Dial(l.host, network, addr)
	}}}
	defer client.CloseIdleConnections()
	for name, expression := range expressions(t) {
		testkit.Eventually(t, 20*time.Second, func() error {
			n, err := query(client, expression)
			if err == nil && n == 0 {
				err = errors.New("no data")
			}
			if err != nil {
				time.Sleep(200 * time.Millisecond)
				return fmt.Errorf("%s: %s: %w; %s", name, expression, err, log.String())
			}
			return nil
		})
	}
	// What a query finds is true.
	n, err := query(client, `mustang_datapath_endpoints == 2 and mustang_datapath_up == 1`)
	testkit.Check(t, n == 1 && err == nil, "two pods: %d, %v", n, err)
	n, err = query(client, `mustang_datapath_no_such_metric`)
	testkit.Check(t, n == 0 && err == nil, "no such metric: %d, %v", n, err)
}

// TestTextfile writes the file, and keeps an existing file if it cannot.
func TestTextfile(t *testing.T) {
	l := newLab(t, kept.Root)
	dir := t.TempDir()
	path := filepath.Join(dir, "mustang.prom")
	write := func(path string) error {
		cmd := metricsCommand(&cli.Config{Environment: cli.Environment{Stdout: io.Discard, Stderr: io.Discard},
			BPFRoot: l.root})
		cmd.SetArgs([]string{"--textfile", path})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		return cmd.Execute()
	}
	for range 2 {
		testkit.Succeed(t, write(path))
	}
	text, err := os.ReadFile(path)
	testkit.Check(t, err == nil && bytes.Contains(text, []byte("\nmustang_datapath_endpoints 2\n")), "%v: %s", err, text)
	names, err := os.ReadDir(dir)
	testkit.Check(t, len(names) == 1 && err == nil, "files %v, %v; want one", names, err)
	err = write(filepath.Join(dir, "none", "mustang.prom"))
	testkit.Check(t, err != nil, "no error without the directory")
}

// TestTextfileKeepsDevice refuses a path that is not a regular file: a regular file would replace a device.
func TestTextfileKeepsDevice(t *testing.T) {
	testkit.RequireRoot(t)
	dir := t.TempDir()
	null, fifo, link := filepath.Join(dir, "null"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	testkit.Succeed(t, errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mkfifo(fifo, 0o666),
		os.Symlink(null, link)))
	for _, path := range []string{null, fifo, link, dir} {
		before := testkit.Must(os.Lstat(path))(t)
		err := writeTextfile(path, prometheus.NewRegistry())
		testkit.Check(t, err != nil && err.Error() == "--textfile "+path+": not a regular file", "%s: %v", path, err)
		after, err := os.Lstat(path)
		testkit.Check(t, err == nil && os.SameFile(before, after), "%s was replaced: %v", path, err)
	}
}
