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

// migration takes a cluster with flannel and kube-proxy to Mustang and back, as docs/replace-kube-proxy.md says.
// A step of the page is a method. kube-proxy and flannel are processes of nodes, not DaemonSets.
type migration struct {
	*Cluster
	loadClients
	network bool     // Mustang is the network
	service string   // its address and port
	values  []string // of the chart
	mtu     int      // flannel's
}

// Migrate takes the cluster to Mustang and back, with a number of connections in all: beside flannel, or with Mustang
// as the network. It returns a table of the connections by phase, and fails if one was lost.
func (c *Cluster) Migrate(network bool, connections int) (string, error) {
	m := &migration{Cluster: c, loadClients: loadClients{of: map[string]*loadClient{}}, network: network}
	m.values = []string{"nodeSelector.network=mustang", "agent.routing=" + c.Nodes}
	if !network {
		m.values = append(m.values, "agent.routing=off", "agent.masquerade=false", "agent.extraFlags={--cni-conf-dir=}")
	}
	if c.Nodes == "vxlan" {
		m.values = append(m.values, "agent.uplinks={eth0,flannel.1}")
	}
	steps := []step{{"flannel and kube-proxy; backends replaced", m.restartBackends}}
	for _, n := range c.nodes {
		steps = append(steps, step{n.name + " to Mustang", func() error { return m.toMustang(n) }})
	}
	if network {
		steps = append(steps, step{"flannel ends; backends replaced", func() error {
			return inOrder(m.endFlannel, m.restartBackends)
		}})
	}
	steps = append(steps,
		step{"kube-proxy deleted; backends replaced", func() error { return inOrder(m.everywhere, m.restartBackends) }},
		step{"agents upgraded three times", m.upgrade})
	if network && c.Nodes == "vxlan" { // back, flannel's routes would lead into tunnels that are not there yet
		return m.walk(steps, connections)
	}
	steps = append(steps, step{"ready to go back", m.prepareBack})
	for _, n := range c.nodes {
		steps = append(steps, step{n.name + " back", func() error { return m.toKubeProxy(n) }})
	}
	steps = append(steps, step{"Mustang uninstalled; backends replaced", func() error {
		return inOrder(func() error { return c.runHelm("uninstall") }, m.restartBackends)
	}})
	return m.walk(steps, connections)
}

// walk does all steps under load. A step ends once it has enough connections.
func (m *migration) walk(steps []step, connections int) (string, error) {
	m.begin("start")
	err := m.prepare()
	for _, s := range steps {
		if err != nil {
			break
		}
		in, begun := m.begin(s.name), time.Now()
		if err = s.do(); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break
		}
		err = m.await(10*time.Minute, func() error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if want := connections / len(steps); in.connections <= want {
				return fmt.Errorf("%s: %d connections, want %d", s.name, in.connections, want)
			}
			return nil
		})
		fmt.Fprintf(os.Stderr, "%s: %.0f s\n", s.name, time.Since(begun).Seconds())
	}
	for name := range m.of {
		m.stop(name)
	}
	return m.table(), errors.Join(append(m.errs, err)...)
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

// prepare starts pods and clients, and installs Mustang, so far on no node.
func (m *migration) prepare() error {
	image, err := m.Programs.Agnhost(m.ctx)
	if err != nil {
		return err
	}
	objects, err := render("migrate.yaml", image)
	if err == nil {
		err = m.await(time.Minute, func() error { return m.apply(objects) })
	}
	if err == nil {
		_, err = m.kubectl(nil, "-n", "migrate", "rollout", "status", "deployment/web", "--timeout=120s")
	}
	if err != nil {
		return err
	}
	ip, err := m.kubectl(nil, "-n", "migrate", "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	m.service = net.JoinHostPort(ip, "80")
	for _, n := range m.nodes {
		if err == nil {
			err = m.await(time.Minute, func() error {
				return errors.Join(once(n.ns, m.service), once(m.outside, n.port()))
			})
		}
		if err == nil {
			err = m.startPod(n)
		}
		m.start(m.ctx, "host "+n.name, n.ns, m.service)
		m.start(m.ctx, "outside "+n.name, m.outside, n.port())
	}
	if err == nil {
		err = m.apply(fmt.Sprintf(clusterInfo, net.JoinHostPort(m.nodes[0].addrs[0], "6443")))
	}
	if err != nil {
		return err
	}
	args := []string{"install", m.Chart}
	for _, v := range m.values {
		args = append(args, "--set", v)
	}
	return m.runHelm(args...)
}

// port is where the node has the Service's port.
func (n *node) port() string { return net.JoinHostPort(n.addrs[0], "30080") }

// startPod starts the loadClient in the node's pod for it.
func (m *migration) startPod(n *node) error {
	var ip string
	if err := m.await(2*time.Minute, func() error {
		text, err := m.kubectl(nil, "-n", "migrate", "get", "pod", "-l", "app=client", "--field-selector",
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
	m.start(m.ctx, "pod "+n.name, ns, m.service)
	return nil
}

// recreate replaces the node's pods of DaemonSets, which drain leaves. Their connections end with them.
func (m *migration) recreate(n *node) error {
	m.stop("pod " + n.name)
	if _, err := m.kubectl(nil, "-n", "migrate", "delete", "pod", "-l", "app=client", "--field-selector",
		"spec.nodeName="+n.name, "--timeout=60s"); err != nil {
		return err
	}
	return m.startPod(n)
}

// restartBackends replaces all backends.
func (m *migration) restartBackends() error {
	_, err := m.kubectl(nil, "-n", "migrate", "rollout", "restart", "deployment/web")
	if err == nil {
		_, err = m.kubectl(nil, "-n", "migrate", "rollout", "status", "deployment/web", "--timeout=180s")
	}
	return err
}

// excluded is the label of a node to which load balancers of clouds send nothing.
const excluded = "node.kubernetes.io/exclude-from-external-load-balancers"

// drain takes connections from outside and pods from a node.
func (m *migration) drain(n *node) error {
	m.stop("outside " + n.name)
	if err := m.label(n, excluded+"=true"); err != nil {
		return err
	}
	_, err := m.kubectl(nil, "drain", n.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
	return err
}

// uncordon lets pods and connections from outside return to a node.
func (m *migration) uncordon(n *node) error {
	if _, err := m.kubectl(nil, "uncordon", n.name); err != nil {
		return err
	}
	err := m.label(n, excluded+"-")
	m.start(m.ctx, "outside "+n.name, m.outside, n.port())
	return err
}

func (m *migration) label(n *node, label string) error {
	_, err := m.kubectl(nil, "label", "node", n.name, label)
	return err
}

// there takes a node to Mustang.
func (m *migration) toMustang(n *node) error {
	return inOrder(
		func() error { return m.drain(n) },
		func() error { return n.end("kube-proxy") }, // its DaemonSet, by the label
		func() error { return m.label(n, "network=mustang") },
		func() error { return m.awaitAgent(n, true) },
		func() error { return m.enter(n) },
		func() error { return m.recreate(n) },
		func() error { return n.run(m.Programs.Path("kube-proxy"), "--cleanup") },
		func() error { return m.uncordon(n) },
		m.restartBackends,
		func() error { return m.attached(n) },
	)
}

// back takes a node back to kube-proxy.
func (m *migration) toKubeProxy(n *node) error {
	return inOrder(
		func() error { return m.drain(n) },
		func() error { return m.label(n, "network-") },
		func() error { return m.awaitAgent(n, false) },
		n.startProxy,
		func() error { // it is ready
			return m.await(time.Minute, func() error {
				_, err := get(m.ctx, n.ns, "http://127.0.0.1:10256/healthz")
				return err
			})
		},
		func() error { return m.leave(n) },
		func() error { return m.recreate(n) },
		func() error { return n.run(m.Program, "agent", "cleanup", "--all") },
		func() error { return n.run("bash", "-c", leftovers) },
		func() error { return m.uncordon(n) },
		m.restartBackends,
	)
}

// leftovers fails if a node has something of Mustang. The container runtime keeps results of plugins.
const leftovers = `left=$(find /sys/fs/bpf /run/mustang /opt/cni/bin /etc/cni/net.d /var/lib/cni -mindepth 1 \
-name '*mustang*' -not -path '/var/lib/cni/results/*'
ip -o link | grep mst; nft list tables | grep mustang); echo "left: $left"; [ -z "$left" ]`

// awaitAgent returns once the node has an agent that is ready, or none.
func (m *migration) awaitAgent(n *node, ready bool) error {
	want := map[bool]string{true: "True"}[ready]
	return m.await(2*time.Minute, func() error {
		text, err := m.kubectl(nil, "-n", "kube-system", "get", "pod", "-l", "app.kubernetes.io/name=mustang",
			"--field-selector", "spec.nodeName="+n.name, "-o",
			`jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status}{end}`)
		if err == nil && text != want {
			err = fmt.Errorf("ready agents of %s: %q, want %q", n.name, text, want)
		}
		return err
	})
}

// attached expects all pods of a node in its datapath.
func (m *migration) attached(n *node) error {
	return m.await(time.Minute, func() error {
		out, err := n.command(m.ctx, m.Program, "ep", "ls").CombinedOutput()
		if err != nil {
			return fmt.Errorf("ep ls: %w: %s", err, out)
		}
		ips, err := m.kubectl(nil, "-n", "migrate", "get", "pod", "--field-selector", "spec.nodeName="+n.name, "-o",
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
func (m *migration) set(value string) error {
	if err := m.runHelm("upgrade", m.Chart, "--reset-then-reuse-values", "--set", value); err != nil {
		return err
	}
	_, err := m.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang", "--timeout=120s")
	return err
}

// everywhere has nodes need no label, once all of them have it.
func (m *migration) everywhere() error {
	if err := m.set("nodeSelector.network=null"); err != nil {
		return err
	}
	for _, n := range m.nodes {
		if err := n.run(m.Program, "agent", "status", "--wait", "1m"); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// upgrade replaces the agents three times.
func (m *migration) upgrade() error {
	for quota := range 3 {
		if err := m.set(fmt.Sprint("agent.namespaceQuota=", 7+quota)); err != nil {
			return err
		}
	}
	return nil
}
