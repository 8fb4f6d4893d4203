// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// Addresses of the pods on the measured node: a client, and the backends that services are moved between.
var (
	client   = netip.MustParseAddr("10.128.0.9")
	backends = [2]netip.Addr{netip.MustParseAddr("10.128.0.10"), netip.MustParseAddr("10.128.0.11")}
)

// proxy is a program that serves Services on a node.
type proxy struct {
	name  string
	node  *node
	start func(b *testing.B, run int) *process // starts it
}

// node is the measured node, as one proxy sees it.
type node struct {
	host, client *netns.Namespace
	pods         map[netip.Addr]*netns.Namespace
}

// newNode makes a node with its pods, on the segment of the API server.
func newNode(b *testing.B, c *cluster, name string) *node {
	b.Helper()
	n := &node{host: testkit.Namespace(b, name), client: testkit.Namespace(b, name+"-client"),
		pods: map[netip.Addr]*netns.Namespace{}}
	port := "to-" + name
	ip(b, strings.NewReplacer("API", c.ns.Name(), "HOST", n.host.Name(), "PORT", port).Replace(`
		-n API link add PORT type veth peer name eth0 netns HOST
		-n API link set PORT master br0 up
		-n HOST link set lo up
		-n HOST addr add `+number("10.197.1.0", 0).String()+`/16 dev eth0
		-n HOST link set eth0 up
		-n HOST addr add 10.128.0.1/32 dev lo`))
	testkit.Succeed(b, n.host.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}))
	n.addPod(b, n.client, "client", client)
	for i, address := range backends {
		ns := testkit.Namespace(b, fmt.Sprint(name, "-backend", i))
		n.addPod(b, ns, fmt.Sprint("backend", i), address)
		serve(b, ns, address, byte('a'+i))
	}
	return n
}

func (n *node) addPod(b *testing.B, ns *netns.Namespace, device string, address netip.Addr) {
	b.Helper()
	n.pods[address] = ns
	ip(b, strings.NewReplacer("HOST", n.host.Name(), "POD", ns.Name(), "DEVICE", device, "ADDRESS",
		address.String()).Replace(`
		-n HOST link add DEVICE type veth peer name eth0 netns POD
		-n HOST link set DEVICE up
		-n POD addr add ADDRESS/32 dev eth0
		-n POD link set eth0 up
		-n POD route add 10.128.0.1 dev eth0
		-n POD route add default via 10.128.0.1
		-n HOST route add ADDRESS dev DEVICE`))
}

func serve(b *testing.B, ns *netns.Namespace, address netip.Addr, answer byte) {
	b.Helper()
	var l net.Listener
	testkit.Succeed(b, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(address, 8080).String())
		return err
	}))
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte{answer})
			_ = conn.Close()
		}
	}()
}

// ask connects to a service from the client's pod, and returns the number of the backend that answers.
func (n *node) ask(to netip.AddrPort, within time.Duration) (answer byte, err error) {
	err = n.client.Do(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), within)
		if err != nil {
			return err
		}
		defer conn.Close()
		var buffer [1]byte
		_ = conn.SetDeadline(time.Now().Add(within))
		if _, err := conn.Read(buffer[:]); err != nil {
			return err
		}
		answer = buffer[0]
		return nil
	})
	return answer, err
}

func dialIn(ns *netns.Namespace) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}

// mustang is `mustang agent`, whose pods have packet programs.
func mustang(b *testing.B, c *cluster) proxy {
	b.Helper()
	program := c.path("mustang")
	out, err := exec.Command("go", "build", "-o", program, "mustang/cmd/mustang").CombinedOutput()
	testkit.Require(b, err == nil, "build: %v: %s", err, out)
	n := newNode(b, c, "mustang")
	root := []string{"--bpf-root=" + testkit.BPFFS(b) + "/mustang"}
	for _, pod := range n.pods {
		args := append([]string{"ep", "add", "--netns=" + pod.Name(), "--host-netns=" + n.host.Name()}, root...)
		out, err := exec.Command(program, args...).CombinedOutput()
		testkit.Require(b, err == nil, "%v: %v: %s", args, err, out)
	}
	return proxy{"mustang", n, func(b *testing.B, run int) *process {
		args := append([]string{"agent", "--node=" + nodeName(0), "--kubeconfig=" + c.kubeconfig, "--cgroup=none",
			"--cni-conf-dir="}, root...)
		return startIn(b, n.host, c.path(fmt.Sprintf("mustang-%d.log", run)), exec.Command(program, args...))
	}}
}

func kubeProxy(b *testing.B, c *cluster) proxy {
	b.Helper()
	n := newNode(b, c, "proxy")
	config := c.path("proxy.yaml")
	if err := os.WriteFile(config, []byte(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: `+c.kubeconfig+`}
clusterCIDR: 10.128.0.0/9
hostnameOverride: `+nodeName(0)+`
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`), 0o600); err != nil {
		b.Fatal(err)
	}
	return proxy{"kube-proxy", n, func(b *testing.B, _ int) *process {
		return c.start(b, n.host, "kube-proxy", "--config="+config)
	}}
}

// memory returns the resident memory of a process, and its anonymous part, in bytes.
func memory(pid int) (resident, own float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	field := func(name string) float64 {
		_, rest, _ := strings.Cut(string(data), name+":")
		text, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		kb, parseErr := strconv.ParseFloat(text, 64)
		err = errors.Join(err, parseErr)
		return kb * 1024
	}
	resident, own = field("VmRSS"), field("RssAnon")
	return resident, own, err
}
