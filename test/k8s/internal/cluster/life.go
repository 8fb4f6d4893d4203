// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"mustang/internal/netns"
)

// What the load while the agent restarts or is killed is: each of some clients in a pod, and as many outside, connects every pace, and none may
// wait for a packet that is sent again.
const (
	whileRestarted = 2
	whileKilled    = 5
	pace           = 20 * time.Millisecond
	loadTimeout = 900 * time.Millisecond
)

// Restart restarts the agents while clients open 200 connections a second, for some time at least, and while connections stand
// open: none is lost. It returns how many there were.
func (c *Cluster) Restart(atLeast time.Duration) (int, error) {
	return c.underLoad(whileRestarted, func() (err error) {
		for begun := time.Now(); time.Since(begun) < atLeast && err == nil; {
			if _, err = c.kubectl(nil, "-n", "kube-system", "rollout", "restart", "daemonset/mustang"); err == nil {
				_, err = c.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang", "--timeout=120s")
			}
		}
		return err
	})
}

// Kill kills the agents of all nodes a number of times, while clients open 500 connections a second and connections stand open: none is lost. The
// kubelet starts a container again at once the first time alone, so every other time a new pod takes its place. It returns how many
// connections there were.
func (c *Cluster) Kill(times int) (int, error) {
	return c.underLoad(whileKilled, func() error {
		for i := range times {
			before, err := c.agents()
			for _, n := range c.nodes {
				err = errors.Join(err, n.command(c.ctx, "pkill", "-KILL", "-x", "mustang").Run())
			}
			if err == nil && i%2 == 1 {
				_, err = c.kubectl(nil, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=mustang", "--force", "--grace-period=0")
			}
			if err == nil {
				err = c.await(time.Minute, func() error {
					now, err := c.agents()
					if err == nil && (len(now) != len(c.nodes) || slices.ContainsFunc(now, func(id string) bool { return slices.Contains(before, id) })) {
						err = fmt.Errorf("kill %d: ready are %q, before it were %q", i, now, before)
					}
					return err
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// agents returns the identities of the agents' containers that are ready.
func (c *Cluster) agents() ([]string, error) {
	out, err := c.kubectl(nil, "-n", "kube-system", "get", "pod", "-l", "app.kubernetes.io/name=mustang", "-o",
		"jsonpath={.items[*].status.containerStatuses[?(@.ready==true)].containerID}")
	return strings.Fields(out), err
}

// underLoad does something while clients open connections, so many in a pod and outside, and while connections stand open. It returns how many
// there were; an error is that one was lost, or that of do.
func (c *Cluster) underLoad(clients int, do func() error) (int, error) {
	if err := c.startPods(); err != nil {
		return 0, err
	}
	var load load
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	pod, address, err := c.client()
	if err != nil {
		return 0, err
	}
	defer pod.Close()
	outside := net.JoinHostPort(c.nodes[0].addrs[0], "30080")
	if err := c.await(10*time.Second, func() error {
		return errors.Join(once(pod, address), once(c.outside, outside))
	}); err != nil {
		return 0, err
	}
	for range clients {
		load.start(ctx, pod, address)
		load.start(ctx, c.outside, outside)
	}
	load.stand(ctx, pod, address)
	load.stand(ctx, c.outside, outside)
	err = do()
	cancel()
	load.Wait()
	_, failed := c.kubectl(nil, "delete", "namespace", "smoke", "--timeout=120s")
	return load.connections, errors.Join(append(load.errs, err, failed)...)
}

// client returns the network namespace of a pod, and a cluster IP with its port.
func (c *Cluster) client() (*netns.Namespace, string, error) {
	ip, err := c.kubectl(nil, "-n", "smoke", "get", "pod", "client-node1", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return nil, "", err
	}
	service, err := c.kubectl(nil, "-n", "smoke", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return nil, "", err
	}
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/netns/*", c.nodes[0].init.Process.Pid))
	for _, path := range paths {
		ns, err := netns.Open(path)
		if err != nil {
			return nil, "", err
		}
		var has []net.Addr
		if err := ns.Do(func() (err error) { has, err = net.InterfaceAddrs(); return err }); err != nil {
			return nil, "", errors.Join(err, ns.Close())
		}
		if slices.ContainsFunc(has, func(a net.Addr) bool { return strings.HasPrefix(a.String(), ip+"/") }) {
			return ns, net.JoinHostPort(service, "80"), nil
		}
		if err := ns.Close(); err != nil {
			return nil, "", err
		}
	}
	return nil, "", errors.Join(err, fmt.Errorf("no network namespace has %s", ip))
}

// load is connections, and what went wrong with them.
type load struct {
	sync.WaitGroup
	mu          sync.Mutex
	connections int
	errs        []error
}

func (l *load) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connections++
	if err != nil && len(l.errs) < 10 {
		l.errs = append(l.errs, err)
	}
}

// start opens connections from a namespace until ctx ends.
func (l *load) start(ctx context.Context, ns *netns.Namespace, address string) {
	l.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for ctx.Err() == nil {
			l.note(once(ns, address))
			<-ticker.C
		}
	})
}

// stand sends requests on a connection that stands open until ctx ends.
func (l *load) stand(ctx context.Context, ns *netns.Namespace, address string) {
	l.Go(func() {
		conn, err := connect(ns, address)
		if err == nil {
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for err == nil && ctx.Err() == nil {
				err = ask(conn, answers)
				time.Sleep(pace)
			}
		}
		if err != nil {
			err = fmt.Errorf("a connection that stood open: %w", err)
		}
		l.note(err)
	})
}

// connect opens a connection from inside a namespace.
func connect(ns *netns.Namespace, address string) (conn net.Conn, err error) {
	err = ns.Do(func() error {
		conn, err = net.DialTimeout("tcp", address, loadTimeout)
		return err
	})
	return conn, err
}

// once opens a connection, sends a request, and closes it.
func once(ns *netns.Namespace, address string) error {
	conn, err := connect(ns, address)
	if err != nil {
		return err
	}
	return errors.Join(ask(conn, bufio.NewReader(conn)), conn.Close())
}

// ask sends a request and reads the answer.
func ask(conn net.Conn, answers *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(loadTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n")); err != nil {
		return err
	}
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return errors.Join(err, response.Body.Close())
}

// argsPath is where the DaemonSet has the agent's command line.
const argsPath = "template/spec/containers/0/args"

// Refused gives the agents flags that exclude each other: the Pod's status says why.
func (c *Cluster) Refused() error {
	const args = `["agent", "--link=macvlan", "--services=off"]`
	if err := c.patch(argsPath, args); err != nil {
		return err
	}
	return c.await(time.Minute, func() error {
		said, err := c.kubectl(nil, "-n", "kube-system", "get", "pod", "-l", "app.kubernetes.io/name=mustang", "-o",
			"jsonpath={.items[*].status.containerStatuses[0].lastState.terminated.message}")
		if err == nil && !strings.Contains(said, "--allow-services-off") {
			err = fmt.Errorf("the status of the agent's pod says %q, not what is wrong with %s", said, args)
		}
		return err
	})
}

// patch replaces a part of the DaemonSet.
func (c *Cluster) patch(replacements ...string) error {
	var list []string
	for i := 0; i < len(replacements); i += 2 {
		list = append(list, fmt.Sprintf(`{"op": "replace", "path": %q, "value": %s}`, "/spec/"+replacements[i], replacements[i+1]))
	}
	_, err := c.kubectl(nil, "-n", "kube-system", "patch", "daemonset", "mustang", "--type=json", "-p", "["+strings.Join(list, ",")+"]")
	return err
}

// Uninstall removes Mustang by its manifest, and sees that each node is as it was before.
func (c *Cluster) Uninstall() error {
	const args = `["agent", "cleanup", "--all", "--stay", "--healthz-address=:10256"]`
	if err := c.patch(argsPath, args, "updateStrategy/rollingUpdate/maxUnavailable", `"100%"`); err != nil {
		return err
	}
	if _, err := c.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang", "--timeout=120s"); err != nil {
		return err
	}
	if _, err := c.kubectl(nil, "delete", "-f", c.Manifest, "--timeout=120s"); err != nil {
		return err
	}
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, c.await(10*time.Second, func() error {
			after, err := n.state()
			lines := diff(n.before, after)
			for _, line := range lines[:min(20, len(lines))] {
				err = errors.Join(err, errors.New(line))
			}
			if err != nil {
				err = fmt.Errorf("%s after Mustang's removal:\n%w", n.name, err)
			}
			return err
		}))
	}
	return errors.Join(errs...)
}

// stateScript prints what Mustang can change of a node. The container runtime keeps results of plugins, and the BPF file system has files of the
// kernel's; it stays mounted.
const stateScript = `
ip -o addr; ip -o -d link; ip route show table all; ip -6 route show table all; ip rule; ip -6 rule; nft list tables | grep -vE ' ip6? (filter|mangle|nat)$' # those of the kubelet
find /sys/fs/bpf /etc/cni/net.d /opt/cni/bin /var/lib/cni /run/mustang /run/netns -mindepth 1 -not -path '/var/lib/cni/results*' -not -path '/sys/fs/bpf/*.debug' 2>/dev/null
for f in $(find /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/bridge -path '*/neigh/*' -prune -o -type f -perm -u+r -print); do echo "$f $(cat $f 2>/dev/null)"; done
"$0" links
`

// state returns what Mustang can change of a node, in lines.
func (n *node) state() ([]string, error) {
	out, err := n.command(n.c.ctx, "bash", "-c", stateScript, n.c.Program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("state of %s: %w: %s", n.name, err, out)
	}
	return strings.Split(string(out), "\n"), nil
}

// diff returns the lines that have come and gone.
func diff(before, after []string) (lines []string) {
	for sign, lists := range map[string][2][]string{"+ ": {after, before}, "- ": {before, after}} {
		for _, line := range lists[0] {
			if !slices.Contains(lists[1], line) {
				lines = append(lines, sign+line)
			}
		}
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[2:], b[2:]) })
	return lines
}
