// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Restart restarts the agents while clients open 200 connections a second, for some time at least, and while
// connections stand open: none is lost. It returns its counts.
func (c *Cluster) Restart(atLeast time.Duration) (string, error) {
	return c.underLoad(whileRestarted, func() (err error) {
		for begun, i := time.Now(), 0; time.Since(begun) < atLeast && err == nil; i++ {
			if err = c.restart(i); err == nil {
				_, err = c.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang", "--timeout=120s")
			}
		}
		return err
	})
}

// restart starts other agents: by an upgrade of the chart if that installed them.
func (c *Cluster) restart(number int) error {
	if len(c.nodes) > 1 {
		return c.helm("upgrade", c.Chart, fmt.Sprint("agent.namespaceQuota=", 8-number%2))
	}
	_, err := c.kubectl(nil, "-n", "kube-system", "rollout", "restart", "daemonset/mustang")
	return err
}

// Kill kills the agents of all nodes a number of times, while clients open 500 connections a second and connections
// stand open: none is lost. The kubelet restarts a container at once only the first time, so every other time a new
// pod takes its place. It returns its counts.
func (c *Cluster) Kill(times int) (string, error) {
	return c.underLoad(whileKilled, func() error {
		for i := range times {
			before, err := c.agents()
			for _, n := range c.nodes {
				err = errors.Join(err, n.command(c.ctx, "pkill", "-KILL", "-x", "mustang").Run())
			}
			if err == nil && i%2 == 1 {
				_, err = c.kubectl(nil, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=mustang", "--force",
					"--grace-period=0")
			}
			if err == nil {
				err = c.await(time.Minute, func() error {
					now, err := c.agents()
					if err == nil && (len(now) != len(c.nodes) ||
						slices.ContainsFunc(now, func(id string) bool { return slices.Contains(before, id) })) {
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

// argsPath is where the DaemonSet has the agent's command line.
const argsPath = "template/spec/containers/0/args"

// Refused gives the agents flags that exclude each other, and expects the reason in the Pod's status.
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
		list = append(list, fmt.Sprintf(`{"op": "replace", "path": %q, "value": %s}`, "/spec/"+replacements[i],
			replacements[i+1]))
	}
	_, err := c.kubectl(nil, "-n", "kube-system", "patch", "daemonset", "mustang", "--type=json", "-p", "["+
		strings.Join(list, ",")+"]")
	return err
}

// Uninstall removes Mustang by its manifest or its chart, and sees that each node is as it was before.
func (c *Cluster) Uninstall() error {
	const args = `["agent", "cleanup", "--all", "--stay", "--healthz-address=:10256"]`
	cleanUp := func() error {
		return c.patch(argsPath, args, "updateStrategy/rollingUpdate/maxUnavailable", `"100%"`)
	}
	remove := func() error {
		_, err := c.kubectl(nil, "delete", "-f", c.Manifest, "--timeout=120s")
		return err
	}
	if len(c.nodes) > 1 {
		cleanUp = func() error { return c.helm("upgrade", c.Chart, "cleanup=true") }
		remove = func() error { return c.helm("uninstall", "") }
	}
	// Pods of specs may have minutes to end, which a later and shorter time does not change.
	if _, err := c.kubectl(nil, "delete", "pods", "-A", "--field-selector=metadata.namespace!=kube-system",
		"--grace-period=1", "--wait=false"); err != nil {
		return err
	}
	for _, n := range c.nodes {
		_ = n.command(c.ctx, "pkill", "-KILL", "-x", "agnhost").Run() // there may be none
	}
	if err := cleanUp(); err != nil {
		return err
	}
	if _, err := c.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang",
		"--timeout=120s"); err != nil {
		return err
	}
	if err := remove(); err != nil {
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

// stateScript prints the parts of a node that Mustang can change. The container runtime keeps results of plugins, and
// the BPF file system has files of the kernel's; it stays mounted.
const stateScript = `
ip -o addr; ip -o -d link; ip route show table all; ip -6 route show table all; ip rule; ip -6 rule; nft list tables | grep -vE ' ip6? (filter|mangle|nat)$' # those of the kubelet
find /sys/fs/bpf /etc/cni/net.d /opt/cni/bin /var/lib/cni /run/mustang /run/netns -mindepth 1 -not -path '/var/lib/cni/results*' -not -path '/sys/fs/bpf/*.debug' 2>/dev/null
find /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/bridge -path '*/neigh/*' -prune -o -type f -perm -u+r -exec grep -sH '' {} + 2>/dev/null
"$0" links
`

// forwarding is a node's state without Mustang, but with forwarding, which stays on after Mustang is removed.
func (n *node) forwarding() (lines []string, err error) {
	set := func(value string) (err error) {
		for _, name := range n.c.each("ipv4/ip_forward", "ipv6/conf/all/forwarding") {
			err = errors.Join(err, n.run("sh", "-c", "echo "+value+" >/proc/sys/net/"+name))
		}
		return err
	}
	if err := set("1"); err != nil {
		return nil, err
	}
	lines, err = n.state()
	return lines, errors.Join(err, set("0"))
}

// state returns the parts of a node that Mustang can change, in lines.
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
