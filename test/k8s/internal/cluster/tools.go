// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tools runs the commands that users run against a cluster: sysdump, and bench cluster to its end and interrupted.
func (c *Cluster) Tools() error {
	return errors.Join(c.sysdump(), c.bench())
}

// mustang returns a command of Mustang on node 1.
func (c *Cluster) mustang(args ...string) *exec.Cmd {
	return c.Command(c.ctx, append([]string{c.Program}, args...)...)
}

// marker is the content of a Secret, which no archive may contain.
const marker = "Hunter2hunter2!"

// sysdump makes an archive, and checks it for required content, and for secrets.
func (c *Cluster) sysdump() error {
	secret := `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "marker", "namespace": "kube-system"}, ` +
		`"stringData": {"password": "` + marker + `"}}`
	if err := c.apply(secret); err != nil {
		return err
	}
	path := c.path("run", "sysdump.tar.gz")
	if out, err := c.mustang("sysdump", "--kubeconfig", c.Kubeconfig(), "-f", path).CombinedOutput(); err != nil {
		return fmt.Errorf("sysdump: %w: %s", err, out)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	dir := c.path("run", "sysdump")
	if out, err := exec.CommandContext(c.ctx, "tar", "-xf", path, "--one-top-level="+dir).CombinedOutput(); err != nil {
		return fmt.Errorf("sysdump: %w: %s", err, out)
	}
	var errs []error
	if info.Mode() != 0o600 {
		errs = append(errs, fmt.Errorf("sysdump: mode %v, want that its owner alone reads it", info.Mode()))
	}
	wanted := map[string]string{"cluster/daemonsets.json": `"mustang"`, "cluster/pods.json": `"mustang-`,
		"missing.txt": ""}
	for _, n := range c.nodes {
		dir := "nodes/" + n.name + "/"
		wanted[dir+"agent.log"], wanted[dir+"commands/svc-ls.json"], wanted[dir+"network.txt"] = "", `"10.198.0.1"`,
			"10.197.0.1"
		wanted[dir+"commands/agent-status.json"], wanted["cluster/nodes.json"] = fmt.Sprintf(`"node": %q`, n.name),
			fmt.Sprintf("%q", n.name)
		if c.Family == "ipv6" {
			wanted[dir+"commands/svc-ls.json"], wanted[dir+"network.txt"] = `"fd00:198::1"`, "fd00:197::1"
		}
	}
	for name, want := range wanted {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			errs = append(errs, fmt.Errorf("sysdump: %s: want in it %q: %w", name, want, err))
		}
	}
	secrets, err := c.secrets()
	for what, value := range secrets {
		if found, err := exec.CommandContext(c.ctx, "grep", "-rlF", "-e", value, dir).CombinedOutput(); err == nil {
			errs = append(errs, fmt.Errorf("sysdump: %s has %s", found, what))
		}
	}
	return errors.Join(append(errs, err)...)
}

// secrets returns the strings that no archive may contain, by description: a Secret's content, also in base64 at any
// offset, and tokens of accounts.
func (c *Cluster) secrets() (map[string]string, error) {
	all := map[string]string{"a Secret's content": marker}
	for shift := range 3 {
		coded := base64.StdEncoding.EncodeToString([]byte("xx"[:min(shift, 2)] + marker))
		all[fmt.Sprint("a Secret's content in base64, ", shift)] = strings.TrimRight(coded, "=")[4 : len(marker)-2]
	}
	tokens, err := c.nodes[0].command(c.ctx, "sh", "-c", "cat "+c.nodes[0].path("kubelet")+
		"/pods/*/volumes/kubernetes.io~projected/*/token").Output()
	for i, token := range strings.Split(strings.ReplaceAll(string(tokens), "eyJhbGci", " eyJhbGci"), " ")[1:] {
		all[fmt.Sprint("the token of an account, ", i)] = token[strings.LastIndex(token, ".")+1:] // its signature
	}
	if len(all) < 5 {
		err = errors.Join(err, errors.New("no pod has a token"))
	}
	return all, err
}

// benchRounds are enough for intervals.
const benchRounds = "8"

// bench runs the bench of a cluster, and interrupts another one: neither leaves an object.
func (c *Cluster) bench() error {
	before, err := c.objects()
	if err != nil {
		return err
	}
	results := c.path("log", "bench")
	if err := os.RemoveAll(results); err != nil {
		return err
	}
	args := []string{"bench", "cluster", "--rounds", benchRounds, "--workload", "tcp_rr", "--out", results}
	if c.Family == "ipv6" {
		args = append(args, "--ipv6")
	}
	if out, err := c.mustang(args...).CombinedOutput(); err != nil {
		return fmt.Errorf("bench cluster: %w: %s", err, out)
	}
	return errors.Join(c.report(filepath.Join(results, "latest")), c.unchanged("bench cluster", before),
		c.interrupt(before, args))
}

// report looks for the rows of a run, with their intervals, and for the page.
func (c *Cluster) report(run string) error {
	var file struct {
		Rows []struct {
			ID, Repeats string
			CI95        []float64
			Samples     []float64
		}
	}
	data, err := os.ReadFile(filepath.Join(run, "results.json"))
	if err == nil {
		err = json.Unmarshal(data, &file)
	}
	if err != nil {
		return err
	}
	want := map[string]bool{"again": true}
	for _, path := range []string{"host", "pod-ip", "cluster-ip"} {
		want[path+"/same-node"] = true
		if len(c.nodes) > 1 {
			want[path+"/two-nodes"] = true
		}
	}
	for _, r := range file.Rows {
		if len(r.CI95) != 2 || r.CI95[0] <= 0 || r.CI95[0] > r.CI95[1] {
			continue
		}
		delete(want, r.ID)
		if r.Repeats != "" {
			delete(want, "again")
		}
	}
	var errs []error
	for id := range want {
		errs = append(errs, fmt.Errorf("bench cluster: no row %s with an interval", id))
	}
	page := filepath.Join(run, "report.html")
	if err := os.Remove(page); err != nil {
		errs = append(errs, err)
	}
	out, err := c.mustang("report", run, "-o", "html").CombinedOutput()
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("report: %w: %s", err, out))...)
	}
	text, err := os.ReadFile(page)
	for _, part := range []string{"cluster-ip/same-node", "<svg", "</html>"} {
		if err == nil && !strings.Contains(string(text), part) {
			errs = append(errs, fmt.Errorf("the page of bench cluster has no %s", part))
		}
	}
	return errors.Join(append(errs, err)...)
}

// interrupt starts a bench and interrupts it once its pods are there.
func (c *Cluster) interrupt(before []string, args []string) error {
	cmd := c.mustang(args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	err := c.await(time.Minute, func() error {
		running, err := c.kubectl(nil, "get", "pod", "-A", "-l", "app.kubernetes.io/managed-by=mustang-bench",
			"--field-selector=status.phase=Running", "-o", "name")
		if err == nil && running == "" {
			err = errors.New(args[0] + " has no pod that runs")
		}
		return err
	})
	if failed := unix.Kill(-cmd.Process.Pid, unix.SIGINT); failed != nil {
		return errors.Join(err, failed, cmd.Wait())
	}
	if ended := cmd.Wait(); ended == nil {
		err = errors.Join(err, errors.New(args[0]+" ended well though it was interrupted"))
	}
	if err = errors.Join(err, c.unchanged(args[0]+" that was interrupted", before)); err != nil {
		err = fmt.Errorf("%w: %s", err, said.String())
	}
	return err
}

// objects lists all objects of the cluster but events and leases.
func (c *Cluster) objects() ([]string, error) {
	kinds, err := c.kubectl(nil, "api-resources", "--verbs=list", "-o", "name")
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool {
		return strings.HasPrefix(kind, "events") || strings.HasPrefix(kind, "leases") ||
			strings.HasPrefix(kind, "componentstatuses")
	})
	out, err := c.kubectl(nil, "get", strings.Join(list, ","), "-A", "--no-headers", "-o",
		"custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name")
	lines := strings.Split(out, "\n")
	slices.Sort(lines)
	return lines, err
}

// unchanged compares the objects with the previous ones.
func (c *Cluster) unchanged(who string, before []string) error {
	after, err := c.objects()
	if err != nil {
		return err
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			err = errors.Join(err, fmt.Errorf("%s left %s", who, strings.Join(strings.Fields(line), " ")))
		}
	}
	return err
}
