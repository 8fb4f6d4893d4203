// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mustang/internal/netns"
)

// Bench is what is read of a result file of `mustang bench cluster`.
type Bench struct {
	Run struct {
		Machine struct {
			CPUModel string `json:"cpu_model"`
			CPUs     int
		}
		Kernel string
	}
	Rows []struct {
		ID, Workload, Status, Repeats string
		Median                        float64
		CI95                          *[2]float64
		CPU                           float64 `json:"cpu_us_per_unit"`
	}
}

// Bench runs `mustang bench cluster` with flags, and returns its results.
func (c *Cluster) Bench(flags ...string) (b Bench, err error) {
	dir := c.path("log", "bench")
	if err := os.RemoveAll(dir); err != nil {
		return b, err
	}
	args := append([]string{"bench", "cluster", "--nodes", "node1,node2", "--out", dir}, flags...)
	if out, err := c.mustang(args...).CombinedOutput(); err != nil {
		return b, fmt.Errorf("bench cluster: %w: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "latest", "results.json"))
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	return b, err
}

// Advice has the fields of `mustang advise -o json` that a comparison needs.
type Advice struct {
	Rows []struct {
		Path, Workload string
		Now            Estimate
		Predicted      map[string]struct{ Ratio, Figure Estimate }
	}
}

// Estimate is a figure with its interval; nil: unknown.
type Estimate struct {
	Value float64
	CI95  *[2]float64
}

// Advise runs `mustang advise` with flags, and returns its advice and what it prints. It interrupts another one first:
// neither leaves an object.
func (c *Cluster) Advise(flags ...string) (a Advice, text string, err error) {
	dir := c.path("log", "advise")
	if err := os.RemoveAll(dir); err != nil {
		return a, "", err
	}
	before, err := c.objects()
	if err != nil {
		return a, "", err
	}
	args := append([]string{"advise", "--out", dir}, flags...)
	if err := c.interrupt(before, args); err != nil {
		return a, "", err
	}
	cmd := c.mustang(args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return a, "", fmt.Errorf("advise: %w: %s", err, stderr.String())
	}
	data, err := os.ReadFile(filepath.Join(dir, "latest", "advice.json"))
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	return a, stdout.String(), errors.Join(err, c.unchanged("advise", before))
}

// Pause stops all processes of the nodes, so that another cluster has the machine alone.
func (c *Cluster) Pause() error {
	for _, n := range c.nodes {
		if err := n.run("sh", "-c", "kill -STOP -1"); err != nil {
			return err
		}
	}
	return nil
}

// settleTime is how long nodes have to be ready before they are used: a kubelet reports every 10 s, and after a pause
// first that it has lost sight of its pods.
const settleTime = 12 * time.Second

// Resume lets the nodes' processes go on, and returns once the nodes have settled.
func (c *Cluster) Resume() error {
	if err := c.proceed(); err != nil {
		return err
	}
	since := time.Now()
	return c.await(2*time.Minute, func() error {
		ready, err := c.kubectl(nil, "get", "node", "-o",
			`jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{.spec.taints}{end}`)
		if err != nil || ready != strings.Repeat("True", len(c.nodes)) {
			since = time.Now()
			return errors.Join(err, fmt.Errorf("the nodes are ready, and their taints: %s", ready))
		}
		if left := settleTime - time.Since(since); left > 0 {
			return fmt.Errorf("the nodes have to be ready for %v more", left)
		}
		return nil
	})
}

// proceed lets the nodes' processes go on, and what started them, which stops when they do.
func (c *Cluster) proceed() error {
	var errs []error
	for _, n := range c.nodes {
		n.continueDaemons()
		errs = append(errs, n.run("sh", "-c", "kill -CONT -1"))
	}
	return errors.Join(errs...)
}

func (n *node) continueDaemons() {
	for _, d := range n.daemons {
		_ = syscall.Kill(-d.Process.Pid, syscall.SIGCONT) // it may have ended
	}
}

// Memory is the memory of a node's network, in bytes: resident, and not shared with files.
type Memory struct{ Resident, Own float64 }

// networkPrograms matches the names of processes that are a node's network.
const networkPrograms = "^(mustang|flannel|kube-router|kube-proxy)$"

// Memory returns the memory of the processes that are the network of a node, on average over the nodes. No bench may
// run: its processes have Mustang's name.
func (c *Cluster) Memory() (Memory, error) {
	var m Memory
	for _, n := range c.nodes {
		out, err := n.command(c.ctx, "sh", "-c", `for p in $(pgrep '`+networkPrograms+
			`'); do grep -E '^(VmRSS|RssAnon):' /proc/$p/status; done`).Output()
		if err != nil {
			return m, fmt.Errorf("memory of %s: %w", n.name, err)
		}
		for line := range strings.Lines(string(out)) {
			var name string
			var kB float64
			if _, err := fmt.Sscan(line, &name, &kB); err != nil {
				return m, fmt.Errorf("memory of %s: %q: %w", n.name, line, err)
			}
			to := map[string]*float64{"VmRSS:": &m.Resident, "RssAnon:": &m.Own}[name]
			*to += kB * 1024 / float64(len(c.nodes))
		}
	}
	if m.Resident == 0 {
		return m, errors.New("no process is the network of a node")
	}
	return m, nil
}

// StartPods starts pods and returns how long it took until all are ready. It removes them, with what runs them.
func (c *Cluster) StartPods(count int) (time.Duration, error) {
	objects, err := render("pods.yaml", map[string]any{"Count": count, "Image": PauseImage})
	if err != nil {
		return 0, err
	}
	before := c.shims()
	begun := time.Now()
	if err := c.apply(objects); err != nil {
		return 0, err
	}
	_, err = c.kubectl(nil, "rollout", "status", "deployment/pods", "--timeout=300s")
	took := time.Since(begun)
	_, removed := c.kubectl(nil, "delete", "deployment", "pods", "--timeout=60s")
	_, gone := c.kubectl(nil, "wait", "pod", "-l", "app=pods", "--for=delete", "--timeout=300s")
	return took, errors.Join(err, removed, gone, c.shimsEnd(before))
}

// shimsEnd waits until not more processes run pods than before.
func (c *Cluster) shimsEnd(before int) error {
	return c.await(5*time.Minute, func() error {
		if now := c.shims(); now > before {
			return fmt.Errorf("%d processes run pods, before it were %d", now, before)
		}
		return nil
	})
}

// shims returns the number of processes that run pods, one for each. Pods go from the API before them.
func (c *Cluster) shims() (all int) {
	for _, n := range c.nodes {
		out, _ := n.command(c.ctx, "pgrep", "-c", "-x", "containerd-shim").Output() // it fails for 0
		count, _ := strconv.Atoi(strings.TrimSpace(string(out)))
		all += count
	}
	return all
}

// changePace is the time between two changes. kube-proxy writes at once what changes a second after its last change.
const changePace = 2 * time.Second

// Mover moves the endpoint of a Service between a pod of node 1 and a pod of node 2.
type Mover struct {
	*smoke
	client *netns.Namespace
	url    string
	at     int // the number of the node that has the endpoint
}

// StartMover starts pods and a Service for it.
func (c *Cluster) StartMover() (*Mover, error) {
	if err := c.startPods(); err != nil {
		return nil, err
	}
	m := &Mover{smoke: &smoke{Cluster: c, pods: map[string][]string{}}}
	if err := m.plan(); err != nil {
		return nil, err
	}
	objects, err := render("peers.yaml", m.pods["web-node1"][0])
	if err := errors.Join(err, c.apply(objects)); err != nil {
		return nil, err
	}
	service, err := c.kubectl(nil, "-n", "smoke", "get", "service", "moved", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return nil, err
	}
	m.url = "http://" + net.JoinHostPort(service, "80") + "/hostname"
	if m.client, err = c.client(); err != nil {
		return nil, err
	}
	return m, c.await(30*time.Second, func() error { return m.answers("web-node1") })
}

// Close closes the namespace of the client. The pods end with the cluster.
func (m *Mover) Close() error { return m.client.Close() }

// answers connects to the Service, and fails unless a pod answers.
func (m *Mover) answers(want string) error {
	got, err := get(m.ctx, m.client, m.url)
	if err == nil && got != want {
		err = fmt.Errorf("%q answers, not %s", got, want)
	}
	return err
}

// Change moves the endpoint a number of times. It returns the times from the request to the API server to the end of
// the client's first connection that the new endpoint answers.
func (m *Mover) Change(times int) (took []time.Duration, err error) {
	for range times {
		time.Sleep(changePace)
		m.at = 1 - m.at
		to := "web-" + m.nodes[m.at].name
		begun := time.Now()
		if err := m.move(m.ctx, m.pods[to][0]); err != nil {
			return nil, err
		}
		for err := m.answers(to); err != nil; err = m.answers(to) {
			if time.Since(begun) > loadTimeout {
				return nil, fmt.Errorf("a change of an endpoint: %w", err)
			}
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// move makes an address the endpoint of the Service that moves.
func (c *Cluster) move(ctx context.Context, address string) error {
	_, server := c.server()
	body := fmt.Sprintf(`{"endpoints": [{"addresses": [%q], "conditions": {"ready": true}}]}`, address)
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, "https://"+net.JoinHostPort(server, "6443")+
		"/apis/discovery.k8s.io/v1/namespaces/smoke/endpointslices/moved", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer admin")
	request.Header.Set("Content-Type", "application/merge-patch+json")
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			return connect(c.outside, address, loadTimeout)
		}}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answers %s", response.Status)
	}
	return nil
}
