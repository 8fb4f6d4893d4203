// SPDX-License-Identifier: Apache-2.0

package clusterbench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"

	"mustang/internal/bench/host"
	"mustang/internal/kube"
)

// PodCommand is the hidden subcommand of mustang that runs in pods. Its main calls [Main].
const PodCommand = "cluster-pod"

const (
	idleTime  = 5 * time.Minute  // how long a pod goes on without another process in it: its bench may have ended
	idleLook  = 10 * time.Second // the pause between checks for another process
	reachTime = 30 * time.Second // the time that cluster IPs have to answer
)

// Main runs in pods, by its first argument. "idle" is the process of the container: it ends after the time that follows
// without another process in the pod, and accepts connections at the address that may follow. "reach" waits until all
// addresses that follow accept connections. "describe" prints a description of the node.
func Main(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "describe":
		d, err := host.Describe()
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(d)
	case len(args) > 1 && args[0] == "reach":
		return reachAll(ctx, args[1:])
	case len(args) > 1 && args[0] == "idle":
		most, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		return idle(ctx, most, args[2:])
	}
	return errors.New("want idle, reach or describe")
}

func idle(ctx context.Context, most time.Duration, listen []string) error {
	for _, address := range listen {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
	}
	for last := time.Now(); time.Since(last) < most; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(idleLook):
		}
		if processes, err := filepath.Glob("/proc/[0-9]*"); err != nil || len(processes) > 1 {
			last = time.Now()
		}
	}
	return nil
}

func reachAll(ctx context.Context, addresses []string) error {
	dialer := net.Dialer{Timeout: time.Second}
	for _, address := range addresses {
		var conn net.Conn
		var err error
		if wait.PollUntilContextTimeout(ctx, poll, reachTime, true, func(ctx context.Context) (bool, error) {
			conn, err = dialer.DialContext(ctx, "tcp", address)
			return err == nil, nil
		}) != nil {
			return fmt.Errorf("cluster IP does not answer after %v: %w", reachTime, err)
		}
		_ = conn.Close()
	}
	return nil
}

const named = "mustang-bench/pod" // the label with the name that a pod has here

//go:embed objects.yaml
var objects string

func (a *api) create(ctx context.Context, kind schema.GroupVersionResource, values map[string]any,
) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var text bytes.Buffer
	all := template.Must(template.New("").Option("missingkey=error").Parse(objects))
	if err := all.ExecuteTemplate(&text, strings.TrimSuffix(kind.Resource, "s"), values); err != nil {
		return nil, err
	}
	var o unstructured.Unstructured
	if err := yaml.Unmarshal(text.Bytes(), &o.Object); err != nil {
		return nil, err
	}
	to := a.own(kind)
	if kind == namespaces {
		to = a.dynamic.Resource(kind)
	} else {
		o.SetNamespace(namespace)
	}
	stored, err := to.Create(ctx, &o, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", o.GetKind(), err)
	}
	return stored, nil
}

func (c *Cluster) start(ctx context.Context, p *pod) error {
	most := idleTime
	if p.lab {
		most += c.options.LabAfter
	}
	command := []string{Program, PodCommand, "idle", most.String()}
	if p.server && !p.host {
		command = append(command, fmt.Sprintf(":%d", probePort))
	}
	_, err := c.api.create(ctx, jobs, map[string]any{"Name": p.name, "Longest": c.options.Longest, "Host": p.host,
		"Lab": p.lab, "Node": p.node, "Container": container, "Image": c.options.Image, "Command": command})
	return err
}

func (c *Cluster) serve(ctx context.Context, p *pod) (netip.Addr, error) {
	family := "IPv4"
	if c.options.IPv6 {
		family = "IPv6"
	}
	stored, err := c.api.create(ctx, services, map[string]any{"Name": p.name, "Family": family, "Port": servicePort,
		"Probe": probePort})
	if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ipFamilies") {
		return netip.Addr{}, fmt.Errorf("the cluster lacks cluster IPs of %s", family)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	ip, _, _ := unstructured.NestedString(stored.Object, "spec", "clusterIP")
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("cluster IP of service %s: %w", p.name, err)
	}
	return addr, nil
}

func (c *Cluster) run(ctx context.Context, name string, command ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTime+answerTime)
	defer cancel()
	var stdout, stderr bytes.Buffer
	command = append([]string{Program, PodCommand}, command...)
	err := c.api.exec(ctx, c.pod(name).id, command, kube.ExecStreams{Stdout: &stdout, Stderr: &stderr})
	if text := strings.TrimSpace(stderr.String()); err != nil && text != "" {
		err = errors.Join(err, errors.New(text))
	}
	return stdout.Bytes(), err
}
