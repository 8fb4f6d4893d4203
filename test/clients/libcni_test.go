// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// libcniClient calls libcni on a machine, for one network.
type libcniClient struct {
	m         *machine
	cni       *libcni.CNIConfig
	list      *libcni.NetworkConfigList
	published *netns.Namespace // the pod with a published port, if any
	hostPort  uint16
}

func (c *libcniClient) conf(ns *netns.Namespace) *libcni.RuntimeConf {
	conf := &libcni.RuntimeConf{ContainerID: ns.Name(), NetNS: filepath.Join(podDir, ns.Name()), IfName: "eth0"}
	if ns == c.published {
		conf.CapabilityArgs = object{"portMappings": []object{
			{"hostPort": c.hostPort, "containerPort": podPort, "protocol": "tcp"},
			{"hostPort": c.hostPort, "containerPort": podPort, "protocol": "udp"},
		}}
	}
	return conf
}

func newLibcni(t testing.TB, m *machine, p plugin) *libcniClient {
	t.Helper()
	list := testkit.Must(libcni.NetworkConfFromBytes([]byte(p.conflist(t, p.version))))(t)
	cni := libcni.NewCNIConfigWithCacheDir([]string{pluginDir}, "/var/lib/cni", nil)
	return &libcniClient{m: m, cni: cni, list: list, hostPort: hostPort}
}

// forgetful returns a libcni without cached pods, so that the plugin alone does the GC.
func (c *libcniClient) forgetful() *libcniClient {
	other := *c
	other.cni = libcni.NewCNIConfigWithCacheDir([]string{pluginDir}, "/var/lib/no-cni", nil)
	return &other
}

func (c *libcniClient) do(fn func(ctx context.Context) error) error {
	return c.m.do(func() error { return fn(context.Background()) })
}

// add adds a pod and compares the plugin's result with the pod's device.
func (c *libcniClient) add(t testing.TB, ns *netns.Namespace) pod {
	t.Helper()
	var result types.Result
	err := c.do(func(ctx context.Context) (err error) {
		result, err = c.cni.AddNetworkList(ctx, c.list, c.conf(ns))
		return err
	})
	testkit.Require(t, err == nil, "ADD: %v", err)
	p := newPod(t, ns)
	checkResult(t, result, p)
	return p
}

func checkResult(t testing.TB, result types.Result, p pod) {
	t.Helper()
	r := testkit.Must(types100.NewResultFromResult(result))(t)
	device := testkit.Must(rtnl.In(p.ns).Device("eth0"))(t)
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		bits, _ := ip.Address.Mask.Size()
		if prefix := netip.PrefixFrom(addr.Unmap(), bits); !slices.Contains(device.Addrs, prefix) {
			t.Errorf("eth0 has the addresses %v, the result says %v", device.Addrs, prefix)
		}
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(r.Interfaces) {
			t.Errorf("%s is on no interface of the result", addr)
			continue
		}
		on := r.Interfaces[*ip.Interface]
		mac := make(net.HardwareAddr, 6) // the kernel reports zeros for a device without one
		copy(mac, device.MAC)
		testkit.Check(t, on.Name == "eth0" && on.Mac == mac.String() && on.Sandbox != "",
			"%s is on %+v, want eth0 with %s", addr, on, mac)
	}
	testkit.Check(t, len(r.IPs) == len(p.addrs), "the result has %d addresses, want %d", len(r.IPs), len(p.addrs))
}

func (c *libcniClient) check(ns *netns.Namespace) error {
	return c.do(func(ctx context.Context) error { return c.cni.CheckNetworkList(ctx, c.list, c.conf(ns)) })
}

func (c *libcniClient) del(conf *libcni.RuntimeConf) error {
	return c.do(func(ctx context.Context) error { return c.cni.DelNetworkList(ctx, c.list, conf) })
}

// gc removes everything that does not belong to these pods.
func (c *libcniClient) gc(valid ...*netns.Namespace) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, ns := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: ns.Name(), IfName: "eth0"})
	}
	return c.do(func(ctx context.Context) error { return c.cni.GCNetworkList(ctx, c.list, args) })
}

// TestLibcni calls all verbs through libcni, the library with which runtimes call plugins.
func TestLibcni(t *testing.T) {
	eachPlugin(t, func(t *testing.T, m *machine) {
		c := newLibcni(t, m, m.plugin)
		err := c.do(func(ctx context.Context) error {
			if _, err := c.cni.ValidateNetworkList(ctx, c.list); err != nil { // VERSION
				return err
			}
			return c.cni.GetStatusNetworkList(ctx, c.list)
		})
		testkit.Require(t, err == nil, "VERSION, STATUS: %v", err)
		if m.plugin.verbs {
			checkStatus(t, m)
		}
		nsA, nsB, nsC := testkit.Namespace(t, "a"), testkit.Namespace(t, "b"), testkit.Namespace(t, "c")
		a, b := c.add(t, nsA), c.add(t, nsB)
		checkPods(t, m, a, b)
		checkLeases(t, m, slices.Concat(a.addrs, b.addrs)...)
		for _, ns := range []*netns.Namespace{nsA, nsB} {
			err := c.check(ns)
			testkit.Check(t, err == nil, "CHECK: %v", err)
		}
		deleteDevice(t, nsB)
		testkit.Check(t, c.check(nsB) != nil, "CHECK: a pod without eth0 is good")
		// The second DEL finds nothing left, the third not even a namespace.
		for i, conf := range []*libcni.RuntimeConf{c.conf(nsB), c.conf(nsB), {ContainerID: nsB.Name(), IfName: "eth0"}} {
			err := c.del(conf)
			testkit.Check(t, err == nil, "DEL %d: %v", i, err)
		}
		checkLeases(t, m, a.addrs...)
		testGC(t, c, a, []*netns.Namespace{nsA, nsC})
		err = c.del(c.conf(nsA))
		testkit.Check(t, err == nil, "DEL: %v", err)
		_, err = rtnl.In(nsA).Device("eth0")
		testkit.Check(t, err != nil, "DEL left eth0")
	})
}

// testGC collects the second of two pods and checks that the first is unchanged. Only the second has a published
// port: CHECK of the reference plugin portmap 1.1 looks for the IPv4 rules among the IPv6 rules.
func testGC(t *testing.T, c *libcniClient, keep pod, pods []*netns.Namespace) {
	t.Helper()
	m := c.m
	if m.plugin.ports {
		c.published = pods[1]
	}
	second := c.add(t, pods[1])
	checkLeases(t, m, slices.Concat(keep.addrs, second.addrs)...)
	err := c.gc(pods...)
	testkit.Check(t, err == nil, "GC: %v", err)
	checkLeases(t, m, slices.Concat(keep.addrs, second.addrs)...)
	checkPods(t, m, keep, second)
	if m.plugin.ports {
		checkPorts(t, m, second)
	}
	collector := c
	if m.plugin.verbs {
		collector = c.forgetful()
	}
	err = collector.gc(pods[0])
	testkit.Check(t, err == nil, "GC: %v", err)
	checkLeases(t, m, keep.addrs...)
	_, err = rtnl.In(pods[1]).Device("eth0")
	testkit.Check(t, !m.plugin.verbs || err != nil, "GC left eth0")
	err = c.check(pods[0])
	testkit.Check(t, err == nil, "CHECK after GC: %v", err)
}

// checkStatus calls STATUS with a parent device that does not exist, and expects an error that names it.
func checkStatus(t testing.TB, m *machine) {
	t.Helper()
	p := m.plugin
	first := maps.Clone(p.plugins[0])
	first["parent"] = "nowhere"
	p.plugins = append([]object{first}, p.plugins[1:]...)
	c := newLibcni(t, m, p)
	err := c.do(func(ctx context.Context) error { return c.cni.GetStatusNetworkList(ctx, c.list) })
	var coded *types.Error
	testkit.Check(t, errors.As(err, &coded) && coded.Code == 50 && strings.Contains(coded.Msg, "nowhere"),
		"STATUS without a parent: %v", err)
}

// deleteDevice deletes a pod's device without the plugin.
func deleteDevice(t testing.TB, ns *netns.Namespace) {
	t.Helper()
	testkit.RequireTool(t, "ip")
	cmd := exec.Command("ip", "link", "delete", "eth0")
	testkit.Succeed(t, ns.Start(cmd))
	testkit.Succeed(t, cmd.Wait())
}

// TestCnitool calls the verbs with the command cnitool, with which people try plugins.
func TestCnitool(t *testing.T) {
	testkit.RequireRoot(t)
	tool := built(t, cnitool)
	eachPlugin(t, func(t *testing.T, m *machine) {
		run := func(ns *netns.Namespace, verb string) (string, error) {
			cmd := m.command(filepath.Base(tool), verb, m.plugin.network(), filepath.Join(podDir, ns.Name()))
			cmd.Env = append(cmd.Env, "CNI_PATH="+pluginDir, "NETCONFPATH="+configDir)
			return m.run(cmd)
		}
		var pods []pod
		nsA, nsB := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
		for _, ns := range []*netns.Namespace{nsA, nsB} {
			out := testkit.Must(run(ns, "add"))(t)
			result, err := types100.NewResult([]byte(out))
			testkit.Require(t, err == nil && json.Valid([]byte(out)), "%v in %s", err, out)
			pod := newPod(t, ns)
			checkResult(t, result, pod)
			pods = append(pods, pod)
		}
		checkPods(t, m, pods[0], pods[1])
		for _, verb := range []string{"status", "check", "del", "del"} {
			testkit.Must(run(nsA, verb))(t)
		}
		checkLeases(t, m, pods[1].addrs...)
		// cnitool passes no valid attachments.
		testkit.Must(run(nsB, "gc"))(t)
	}, tool)
}
