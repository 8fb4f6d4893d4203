// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// server returns the API server's address, and in the form that a URL has.
func (c *Cluster) server() (addr, inURL string) {
	addr = c.nodes[0].addrs[0]
	if strings.Contains(addr, ":") {
		return addr, "[" + addr + "]"
	}
	return addr, addr
}

// startControl starts the control plane on node 1 and returns when the API server is ready.
func (c *Cluster) startControl() error {
	tokens := "admin,admin,admin,\"system:masters\"\n"
	for _, n := range c.nodes {
		tokens += fmt.Sprintf("%s,system:node:%s,%s,\"system:nodes,system:masters\"\n", n.name, n.name, n.name)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := errors.Join(os.WriteFile(c.path("run", "tokens.csv"), []byte(tokens), 0o600),
		os.WriteFile(c.path("run", "accounts.key"), keyPEM, 0o600), c.kubeconfig("admin")); err != nil {
		return err
	}
	addr, _ := c.server()
	first, services := c.nodes[0], "--service-cluster-ip-range="+c.list("10.198.0.0/16", "fd00:198::/108")
	key1, config := c.path("run", "accounts.key"), "--kubeconfig="+c.Kubeconfig()
	err = errors.Join(
		first.daemon(c.Programs.Path("etcd"), "--data-dir="+c.path("run", "etcd"), "--unsafe-no-fsync", "--log-level=warn"),
		first.daemon(c.Programs.Path("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--cert-dir="+
			c.path("run", "apiserver"),
			"--advertise-address="+addr, services, "--token-auth-file="+c.path("run", "tokens.csv"),
			"--authorization-mode=Node,RBAC",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file="+key1,
			"--service-account-signing-key-file="+key1, "--allow-privileged=true",
			"--kubelet-preferred-address-types=InternalIP"))
	if err == nil {
		err = c.await(2*time.Minute, func() error {
			_, err := c.kubectl(nil, "get", "--raw", "/readyz")
			return err
		})
	}
	if err != nil {
		return err
	}
	return errors.Join(
		first.daemon(c.Programs.Path("kube-controller-manager"), config, "--leader-elect=false", "--bind-address=127.0.0.1",
			"--service-account-private-key-file="+key1, "--root-ca-file="+c.path("run", "apiserver", "apiserver.crt"),
			"--cert-dir="+c.path("run", "kcm"),
			"--node-monitor-grace-period="+c.grace().String(),
			"--allocate-node-cidrs=true", "--cluster-cidr="+c.list("10.199.0.0/16", "fd00:199::/48"), services),
		first.daemon(c.Programs.Path("kube-scheduler"), config, "--leader-elect=false", "--bind-address=127.0.0.1",
			"--cert-dir="+c.path("run", "scheduler")))
}

// grace returns after which time a node that reports nothing counts as down: nodes that are paused never.
func (c *Cluster) grace() time.Duration {
	if c.Peers != "" {
		return 24 * time.Hour
	}
	return 50 * time.Second // the default
}

// kubeconfig writes the kubeconfig of a user.
func (c *Cluster) kubeconfig(user string) error {
	_, server := c.server()
	return c.write("kubeconfig", c.path("run", user+".kubeconfig"), map[string]string{"Server": server, "Token": user})
}

// write writes a template, filled in, to a file.
func (c *Cluster) write(name, path string, data any) error {
	text, err := render(name, data)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o600)
}

// startKubelets starts containerd and the kubelet on each node, with all images that pods have.
func (c *Cluster) startKubelets() error {
	var group errgroup.Group
	for _, n := range c.nodes {
		group.Go(func() error {
			if err := n.startKubelet(); err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (n *node) startKubelet() error {
	err := errors.Join(n.c.kubeconfig(n.name), os.WriteFile(n.path("resolv.conf"), nil, 0o644),
		n.c.write("kubelet.yaml", n.path("kubelet.yaml"), map[string]string{
			"Cgroup": "/" + n.c.name + "/" + n.name, "DNS": n.c.list("10.198.0.10", `"fd00:198::a"`), "Resolv": n.path(
				"resolv.conf"),
		}))
	if err == nil {
		err = n.startRuntime(n.c.Programs.Images(), n.c.Image)
	}
	if err != nil {
		return err
	}
	return n.daemon(n.c.Programs.Path("kubelet"), "--config="+n.path("kubelet.yaml"), "--kubeconfig="+
		n.c.path("run", n.name+".kubeconfig"),
		"--hostname-override="+n.name, "--node-labels=topology.kubernetes.io/zone=zone-"+n.name, "--node-ip="+
			strings.Join(n.addrs, ","), "--root-dir="+n.path("kubelet"), "--cert-dir="+n.path("pki"))
}

// startRuntime starts containerd, and gives it the images of archives.
func (n *node) startRuntime(archives ...string) error {
	err := n.c.write("containerd.toml", n.path("containerd.toml"), map[string]string{"Root": n.path("containerd"),
		"Pause": PauseImage})
	if err == nil {
		err = n.daemon("containerd", "-c", n.path("containerd.toml"))
	}
	if err == nil {
		err = n.c.await(time.Minute, func() error { return n.run("ctr", "version") })
	}
	for _, archive := range archives {
		if err == nil {
			err = n.run("ctr", "-n", "k8s.io", "images", "import", archive)
		}
	}
	return err
}

// installNetwork installs the network of the set-up.
func (c *Cluster) installNetwork() error {
	if c.Peer != "" {
		return c.installPeer()
	}
	return c.install()
}

// install installs Mustang with the flags of the set-up: on one node by its manifest, else by its chart.
func (c *Cluster) install() error {
	for _, n := range c.nodes {
		var err error
		if n.before, err = n.forwarding(); err != nil {
			return err
		}
	}
	if len(c.nodes) > 1 {
		return c.installChart()
	}
	manifest, err := os.ReadFile(c.Manifest)
	if err != nil {
		return err
	}
	text, err := substitute(string(manifest), c.Setup, c.nodes[0].addrs[0])
	if err != nil {
		return err
	}
	return c.apply(text)
}

// substitute fills in the manifest's values that users edit, and the flags of the set-up.
func substitute(manifest string, s Setup, server string) (string, error) {
	routing := s.routing()
	for old, replacement := range map[string]string{
		`"API_SERVER"`: `"` + server + `"`, "- --link=auto\n": "- --link=" + s.Link + "\n",
		"- --routing=auto\n": "- --routing=" + routing + "\n",
	} {
		if !strings.Contains(manifest, old) {
			return "", fmt.Errorf("the manifest has no %q", old)
		}
		manifest = strings.ReplaceAll(manifest, old, replacement)
	}
	return manifest, nil
}

// startDNS starts CoreDNS on node 1 and makes its service.
func (c *Cluster) startDNS() error {
	endpoints := map[string]string{}
	for _, addr := range c.nodes[0].addrs {
		family := "4"
		if strings.Contains(addr, ":") {
			family = "6"
		}
		endpoints[family] = addr
	}
	objects, err := render("dns.yaml", map[string]any{"Services": c.each("10.198.0.10", "fd00:198::a"),
		"Endpoints": endpoints})
	if err == nil {
		err = c.write("Corefile", c.path("run", "Corefile"), map[string]any{"Addresses": c.nodes[0].addrs,
			"Kubeconfig": c.Kubeconfig()})
	}
	if err != nil {
		return err
	}
	return errors.Join(c.nodes[0].daemon(c.Programs.Path("coredns"), "-conf", c.path("run", "Corefile")), c.apply(objects))
}

// ranges returns the node's ranges of pods, once it has them.
func (n *node) ranges() (ranges []string, err error) {
	err = n.c.await(2*time.Minute, func() error {
		text, err := n.c.kubectl(nil, "get", "node", n.name, "-o", "jsonpath={.spec.podCIDRs[*]}")
		if ranges = strings.Fields(text); err == nil && len(ranges) == 0 {
			err = errors.New(n.name + " has no range of pods")
		}
		return err
	})
	return ranges, err
}

// awaitNodes returns when pods can start: all nodes are ready, the network is, and the outside has routes to pods.
func (c *Cluster) awaitNodes() error {
	for _, n := range c.nodes {
		ranges, err := n.ranges()
		if err != nil {
			return err
		}
		for _, prefix := range ranges {
			via := n.addrs[0]
			if strings.Contains(prefix, ":") {
				via = n.addrs[len(n.addrs)-1]
			}
			if err := ip(c.outside, "route add "+prefix+" via "+via); err != nil {
				return err
			}
		}
	}
	if _, err := c.kubectl(nil, "wait", "node", "--all", "--for=condition=Ready", "--timeout=120s"); err != nil {
		return err
	}
	if c.Peer == "" {
		if _, err := c.kubectl(nil, "-n", "kube-system", "rollout", "status", "daemonset/mustang",
			"--timeout=120s"); err != nil {
			return err
		}
	}
	// A namespace gets its account a moment later, and pods are refused until then.
	return c.await(time.Minute, func() error {
		_, err := c.kubectl(nil, "get", "serviceaccount", "default")
		return err
	})
}
