// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// way takes a cluster with flannel and kube-proxy to Mustang as docs/replace-kube-proxy.md says, and back, under load.
// A step of the page is a method. kube-proxy and flannel are processes of nodes, not DaemonSets.
type way struct {
	*Cluster
	visitors
	network bool     // Mustang is the network
	service string   // its address and port
	values  []string // of the chart
	mtu     int      // flannel's
}

// Way takes the cluster to Mustang and back, with so many connections in all: beside flannel, or with Mustang as the
// network. It returns a table of the connections by phase, and fails if one was lost.
func (c *Cluster) Way(network bool, connections int) (string, error) {
	w := &way{Cluster: c, visitors: visitors{of: map[string]*visitor{}}, network: network}
	w.values = []string{"nodeSelector.network=mustang", "agent.routing=" + c.Nodes}
	if !network {
		w.values = append(w.values, "agent.routing=off", "agent.masquerade=false", "agent.extraFlags={--cni-conf-dir=}")
	}
	if c.Nodes == "vxlan" {
		w.values = append(w.values, "agent.uplinks={eth0,flannel.1}")
	}
	steps := []step{{"flannel and kube-proxy; backends replaced", w.roll}}
	for _, n := range c.nodes {
		steps = append(steps, step{n.name + " to Mustang", func() error { return w.there(n) }})
	}
	if network {
		steps = append(steps, step{"flannel ends; backends replaced", func() error { return inOrder(w.endFlannel, w.roll) }})
	}
	steps = append(steps,
		step{"kube-proxy deleted; backends replaced", func() error { return inOrder(w.everywhere, w.roll) }},
		step{"agents upgraded three times", w.upgrade})
	if network && c.Nodes == "vxlan" { // back, flannel's routes would lead into tunnels that are not there yet
		return w.walk(steps, connections)
	}
	steps = append(steps, step{"ready to go back", w.prepareBack})
	for _, n := range c.nodes {
		steps = append(steps, step{n.name + " back", func() error { return w.back(n) }})
	}
	steps = append(steps, step{"Mustang uninstalled; backends replaced", func() error {
		return inOrder(func() error { return c.runHelm("uninstall") }, w.roll)
	}})
	return w.walk(steps, connections)
}

// walk does all steps under load. A step ends once it has enough connections.
func (w *way) walk(steps []step, connections int) (string, error) {
	w.begin("start")
	err := w.prepare()
	for _, s := range steps {
		if err != nil {
			break
		}
		in, begun := w.begin(s.name), time.Now()
		if err = s.do(); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break
		}
		err = w.await(10*time.Minute, func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if want := connections / len(steps); in.connections <= want {
				return fmt.Errorf("%s: %d connections, want %d", s.name, in.connections, want)
			}
			return nil
		})
		fmt.Fprintf(os.Stderr, "%s: %.0f s\n", s.name, time.Since(begun).Seconds())
	}
	for name := range w.of {
		w.stop(name)
	}
	return w.table(), errors.Join(append(w.errs, err)...)
}

// inOrder calls functions until one fails.
func inOrder(all ...func() error) error {
	for _, do := range all {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// prepare starts pods and visitors, and installs Mustang, so far on no node.
func (w *way) prepare() error {
	image, err := w.Programs.Agnhost(w.ctx)
	if err != nil {
		return err
	}
	objects, err := render("way.yaml", image)
	if err == nil {
		err = w.await(time.Minute, func() error { return w.apply(objects) })
	}
	if err == nil {
		_, err = w.kubectl(nil, "-n", "way", "rollout", "status", "deployment/web", "--timeout=120s")
	}
	if err != nil {
		return err
	}
	ip, err := w.kubectl(nil, "-n", "way", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	w.service = net.JoinHostPort(ip, "80")
	for _, n := range w.nodes {
		if err == nil {
			err = w.await(time.Minute, func() error {
				return errors.Join(once(n.ns, w.service), once(w.outside, n.port()))
			})
		}
		if err == nil {
			err = w.startPod(n)
		}
		w.start(w.ctx, "host "+n.name, n.ns, w.service)
		w.start(w.ctx, "outside "+n.name, w.outside, n.port())
	}
	if err == nil {
		err = w.apply(fmt.Sprintf(clusterInfo, net.JoinHostPort(w.nodes[0].addrs[0], "6443")))
	}
	if err != nil {
		return err
	}
	args := []string{"install", w.Chart}
	for _, v := range w.values {
		args = append(args, "--set", v)
	}
	return w.runHelm(args...)
}

// port is where the node has the Service's port.
func (n *node) port() string { return net.JoinHostPort(n.addrs[0], "30080") }

// startPod starts the visitor in the node's pod for it.
func (w *way) startPod(n *node) error {
	var ip string
	if err := w.await(2*time.Minute, func() error {
		text, err := w.kubectl(nil, "-n", "way", "get", "pod", "-l", "app=client", "--field-selector",
			"spec.nodeName="+n.name, "-o",
			`jsonpath={range .items[*]}{.status.podIP} {.status.conditions[?(@.type=="Ready")].status}{end}`)
		ip, _, _ = strings.Cut(text, " ")
		if err == nil && text != ip+" True" {
			err = fmt.Errorf("the client of %s: %q", n.name, text)
		}
		return err
	}); err != nil {
		return err
	}
	ns, err := n.podNamespace(ip)
	if err != nil {
		return err
	}
	w.start(w.ctx, "pod "+n.name, ns, w.service)
	return nil
}

// recreate replaces the node's pods of DaemonSets, which drain leaves. Their connections end with them.
func (w *way) recreate(n *node) error {
	w.stop("pod " + n.name)
	if _, err := w.kubectl(nil, "-n", "way", "delete", "pod", "-l", "app=client", "--field-selector",
		"spec.nodeName="+n.name, "--timeout=60s"); err != nil {
		return err
	}
	return w.startPod(n)
}

// roll replaces all backends.
func (w *way) roll() error {
	_, err := w.kubectl(nil, "-n", "way", "rollout", "restart", "deployment/web")
	if err == nil {
		_, err = w.kubectl(nil, "-n", "way", "rollout", "status", "deployment/web", "--timeout=180s")
	}
	return err
}

// excluded is the label of a node to which load balancers of clouds send nothing.
const excluded = "node.kubernetes.io/exclude-from-external-load-balancers"

// drain takes connections from outside and pods from a node.
func (w *way) drain(n *node) error {
	w.stop("outside " + n.name)
	if err := w.label(n, excluded+"=true"); err != nil {
		return err
	}
	_, err := w.kubectl(nil, "drain", n.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
	return err
}

// uncordon lets pods and connections from outside return to a node.
func (w *way) uncordon(n *node) error {
	if _, err := w.kubectl(nil, "uncordon", n.name); err != nil {
		return err
	}
	err := w.label(n, excluded+"-")
	w.start(w.ctx, "outside "+n.name, w.outside, n.port())
	return err
}

func (w *way) label(n *node, label string) error {
	_, err := w.kubectl(nil, "label", "node", n.name, label)
	return err
}

// there takes a node to Mustang.
func (w *way) there(n *node) error {
	return inOrder(
		func() error { return w.drain(n) },
		func() error { return n.end("kube-proxy") }, // its DaemonSet, by the label
		func() error { return w.label(n, "network=mustang") },
		func() error { return w.awaitAgent(n, true) },
		func() error { return w.enter(n) },
		func() error { return w.recreate(n) },
		func() error { return n.run(w.Programs.Path("kube-proxy"), "--cleanup") },
		func() error { return w.uncordon(n) },
		w.roll,
		func() error { return w.attached(n) },
	)
}

// back takes a node back to kube-proxy.
func (w *way) back(n *node) error {
	return inOrder(
		func() error { return w.drain(n) },
		func() error { return w.label(n, "network-") },
		func() error { return w.awaitAgent(n, false) },
		n.startProxy,
		func() error { // it is ready
			return w.await(time.Minute, func() error {
				_, err := get(w.ctx, n.ns, "http://127.0.0.1:10256/healthz")
				return err
			})
		},
		func() error { return w.leave(n) },
		func() error { return w.recreate(n) },
		func() error { return n.run(w.Program, "agent", "cleanup", "--all") },
		func() error { return n.run("bash", "-c", leftovers) },
		func() error { return w.uncordon(n) },
		w.roll,
	)
}

// leftovers fails if a node has something of Mustang. The container runtime keeps results of plugins.
const leftovers = `left=$(find /sys/fs/bpf /run/mustang /opt/cni/bin /etc/cni/net.d /var/lib/cni -mindepth 1 \
-name '*mustang*' -not -path '/var/lib/cni/results/*'
ip -o link | grep mst; nft list tables | grep mustang); echo "left: $left"; [ -z "$left" ]`

// awaitAgent returns once the node has an agent that is ready, or none.
func (w *way) awaitAgent(n *node, ready bool) error {
	want := map[bool]string{true: "True"}[ready]
	return w.await(2*time.Minute, func() error {
		text, err := w.kubectl(nil, "-n", "kube-system", "get", "pod", "-l", "app.kubernetes.io/name=mustang",
			"--field-selector", "spec.nodeName="+n.name, "-o",
			`jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{end}`)
		if err == nil && text != want {
			err = fmt.Errorf("ready agents of %s: %q, want %q", n.name, text, want)
		}
		return err
	})
}

// attached expects all pods of a node in its datapath.
func (w *way) attached(n *node) error {
	return w.await(time.Minute, func() error {
		out, err := n.command(w.ctx, w.Program, "ep", "ls").CombinedOutput()
		if err != nil {
			return fmt.Errorf("ep ls: %w: %s", err, out)
		}
		ips, err := w.kubectl(nil, "-n", "way", "get", "pod", "--field-selector", "spec.nodeName="+n.name, "-o",
			"jsonpath={.items[*].status.podIP}")
		for ip := range strings.FieldsSeq(ips) {
			if !slices.Contains(strings.Fields(string(out)), ip) {
				err = fmt.Errorf("ep ls of %s has no %s:\n%s", n.name, ip, out)
			}
		}
		return err
	})
}

// set upgrades the release with a value.
func (w *way) set(value string) error {
	if err := w.runHelm("upgrade", w.Chart, "--reset-then-reuse-values", "--set", value); err != nil {
		return err
	}
	_, err := w.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang", "--timeout=120s")
	return err
}

// everywhere has nodes need no label, once all of them have it.
func (w *way) everywhere() error {
	if err := w.set("nodeSelector.network=null"); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := n.run(w.Program, "agent", "status", "--wait", "1m"); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// upgrade replaces the agents three times.
func (w *way) upgrade() error {
	for quota := range 3 {
		if err := w.set(fmt.Sprint("agent.namespaceQuota=", 7+quota)); err != nil {
			return err
		}
	}
	return nil
}
