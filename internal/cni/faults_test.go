// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath/objects"
	"mustang/internal/ipam"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// refused runs ADD, which must fail with a code and one line and change nothing. DEL must work after it.
func (f *fixture) refused(p *pod, code uint, words ...string) {
	f.t.Helper()
	before := f.left()
	err := f.add(p)
	f.oneLine(err, words...)
	if err != nil && Coded(err).Code != code {
		f.t.Errorf("%v: code %d, want %d", err, Coded(err).Code, code)
	}
	_, there := rtnl.In(p.Namespace).Device(p.request.IfName)
	testkit.Check(f.t, there != nil, "the pod has a device")
	f.same(before, "ADD that fails")
	f.must(f.del(p))
	f.same(before, "DEL after ADD that fails")
}

// TestFull assigns all addresses.
func TestFull(t *testing.T) {
	f := newFixture(t)
	config := []byte(strings.Replace(string(network("net", "veth", "")), "10.113.0.0/24", "10.113.0.0/30", 1))
	f.must(f.status(config))
	p := f.added("a", config)
	f.refused(f.pod("b", config), types.ErrTryAgainLater, "no free address in 10.113.0.0/30", "1 in use")
	err := f.status(config)
	f.oneLine(err, "no free address in 10.113.0.0/30")
	code := Coded(err).Code
	testkit.Check(t, code == codeNotAvailable, "STATUS has code %d", code)
	f.checkAndDelete(p)
	f.must(f.status(config))
	f.must(f.del(f.added("b", config)))
}

// tmpfs mounts a file system with a number of bytes at path, in this and all namespaces.
func tmpfs(t *testing.T, path, options string) {
	t.Helper()
	testkit.Succeed(t, os.MkdirAll(path, 0o700))
	testkit.Succeed(t, unix.Mount("tmpfs", path, "tmpfs", 0, options))
	t.Cleanup(func() { testkit.Succeed(t, unix.Unmount(path, unix.MNT_DETACH)) })
}

func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file := testkit.Must(os.Create(path))(t)
	defer file.Close()
	for err := error(nil); err == nil; {
		_, err = file.Write(make([]byte, 4096))
	}
	return func() { _ = os.Remove(path) }
}

// TestDisk fills the disk or makes it read-only. DEL of an existing attachment still works.
func TestDisk(t *testing.T) {
	eachName(t, []string{"state", "run"}, newSocketFixture, func(t *testing.T, f *fixture, which string) {
		dir := map[string]string{"state": f.plugin.StateDir, "run": f.plugin.RunDir}[which]
		tmpfs(t, dir, "size=1m,mode=700")
		config := everything("veth")
		f.must(f.status(config)) // before there is a directory
		files, err := filepath.Glob(dir + "/*")
		testkit.Check(t, err == nil && len(files) == 0, "STATUS leaves %q, %v", files, err)
		f.must(f.del(f.added("first", config)))
		t.Run("full", func(t *testing.T) {
			f := f.in(t)
			p := f.added("a", config)
			free := fillDisk(t, dir)
			f.refused(f.pod("full", config), types.ErrIOFailure, "no space left on device")
			f.oneLine(f.status(config), dir, "no space left on device")
			free()
			f.must(f.check(p))
			fillDisk(t, dir)
			f.must(f.del(p))
			free()
			p = f.added("b", config)
			f.checkAndDelete(p)
		})
		t.Run("read-only", func(t *testing.T) {
			f := f.in(t)
			remount := func(flags uintptr) { f.must(unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "")) }
			remount(unix.MS_RDONLY)
			defer remount(0)
			p := f.pod("ro", config)
			before := f.left()
			f.oneLine(f.status(config), dir, "read-only file system")
			err := f.add(p)
			f.oneLine(err, "read-only file system")
			if err != nil && Coded(err).Code != types.ErrIOFailure {
				t.Errorf("code %d", Coded(err).Code)
			}
			f.same(before, "ADD")
		})
	})
}

// TestNoBPFFS puts the directory of the datapath on another file system.
func TestNoBPFFS(t *testing.T) {
	f := newBareFixture(t)
	f.plugin.BPFRoot = filepath.Join(t.TempDir(), "none")
	config := network("net", "veth", "")
	f.refused(f.pod("a", config), codeNotAvailable, f.plugin.BPFRoot, "BPF file system")
	f.oneLine(f.status(config), f.plugin.BPFRoot, "BPF file system")
	off := []byte(strings.Replace(string(config), `"tc"`, `"off","sourceGuard":"off"`, 1))
	f.must(f.status(off))
	p := f.added("a", off) // does not need it
	f.checkAndDelete(p)
}

// TestOtherLayout replaces the plugin while pods exist, as an upgrade does, by one whose maps have another layout.
func TestOtherLayout(t *testing.T) {
	t.Parallel()
	for _, services := range []string{netconf.ServicesTC, netconf.ServicesSocket, netconf.ServicesBoth} {
		t.Run(services, func(t *testing.T) {
			t.Parallel()
			f := newBareFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			plain := network("net", "veth", `,"services":"`+services+`"`)
			published := with(plain, `"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`)
			f.must(f.del(f.added("first", plain))) // makes what stays
			ours := filepath.Join(f.plugin.BPFRoot, fmt.Sprintf("v%d", objects.LayoutVersion))
			theirs := filepath.Join(f.plugin.BPFRoot, "v1")
			f.must(os.Rename(ours, theirs))
			empty := f.left()
			f.must(os.Rename(theirs, ours))
			pods := []*pod{f.added("plain", plain), f.added("published", published)}
			f.must(os.Rename(ours, theirs))
			f.refused(f.pod("new", plain), types.ErrInternal, "layout v1", "mustang reset")
			for _, p := range pods {
				f.oneLine(f.check(p), "layout v1", "mustang reset")
				f.must(f.del(p))
			}
			f.same(empty, "DEL")
			f.must(objects.Remove(t.Context(), f.plugin.BPFRoot)) // as ADD says
			f.must(f.del(f.added("plain", plain)))
		})
	}
}

// TestWrongHost configures devices that the host lacks, or that are of another kind.
func TestWrongHost(t *testing.T) {
	f := newFixture(t)
	f.must(f.del(f.added("first", network("net", "veth", "")))) // makes what stays
	store := f.plugin.addresses("other")
	testkit.Must(store.Reserve(record.Owner{ContainerID: "a", IfName: "eth0"},
		[]ipam.RangeSet{{{Subnet: netip.MustParsePrefix("10.114.0.0/24")}}}, nil))(f.t)
	f.must(store.Release(record.Owner{ContainerID: "a", IfName: "eth0"}))
	testkit.Command(t, f.host, "ip link add thin mtu 1300 type veth peer name thinner mtu 1300")
	testkit.Command(t, f.host, "ip link set thin up")
	testkit.Command(t, f.host, "ip link set thinner up")
	testkit.Command(t, f.host, "ip link add mst0 type veth peer name down")
	with := func(mode string, replace ...string) []byte {
		return []byte(strings.NewReplacer(append(replace, `"net"`, `"other"`, "10.113.", "10.114.", "fd00:113:",
			"fd00:114:")...).
			Replace(string(network("net", mode, ""))))
	}
	for _, row := range []struct {
		name   string
		config []byte
		code   uint
		words  []string
	}{
		{"no parent, veth", with("veth", `"uplink"`, `"missing"`), types.ErrInvalidNetworkConfig,
			[]string{"parent", `"missing"`}},
		{"no parent, macvlan", with("macvlan", `"uplink"`, `"missing"`), types.ErrInvalidNetworkConfig,
			[]string{"parent", `"missing"`}},
		{"no parent, MTU given", with("macvlan", `"uplink"`, `"missing","mtu":1400`), types.ErrInternal,
			[]string{`"missing"`}},
		{"MTU greater than the parent's", with("macvlan", `"uplink"`, `"uplink","mtu":9000`), types.ErrInternal,
			[]string{"9000", "1500"}},
		{"MTU of an IPv6 network too small", with("veth", `"uplink"`, `"uplink","mtu":1000`), types.ErrInternal,
			[]string{"1000", "1280"}},
		{"another kind of device by the bridge's name", with("bridge"), types.ErrInternal, []string{`"mst0"`, "veth"}},
		{"parent down", with("macvlan", `"uplink"`, `"down"`), types.ErrInternal, []string{`"down"`}},
	} {
		t.Run(row.name, func(t *testing.T) { f.in(t).refused(f.pod("a", row.config), row.code, row.words...) })
	}
	t.Run("parent with a small MTU", func(t *testing.T) {
		f := f.in(t)
		p := f.added("a", with("macvlan", `"uplink"`, `"thin"`))
		device, err := rtnl.In(p.Namespace).Device("eth0")
		testkit.Check(t, err == nil && device.MTU == 1300 && p.result.Interfaces[0].Mtu == 1300,
			"MTU %d, %v: %s", device.MTU, err, text(t, p.result))
		f.must(f.del(p))
	})
}

// TestParentWithoutCarrier cuts the wire of the parent.
func TestParentWithoutCarrier(t *testing.T) {
	eachName(t, crashModes, newFixture, func(_ *testing.T, f *fixture, mode string) {
		config := network("net", mode, "")
		f.must(f.del(f.added("first", config))) // makes what stays
		f.must(rtnl.In(f.outside).SetUp("far", false))
		before := f.left()
		p := f.pod("a", config)
		err := f.add(p)
		if mode == "macvlan" { // its devices lack a carrier too
			f.oneLine(err, "uplink")
			f.same(before, "ADD")
			return
		}
		f.must(err)
		f.must(f.check(p))
		f.reach(f.host, p.Namespace, p.ips()[0])
		f.must(f.del(p))
	})
}

// TestWanted requests addresses.
func TestWanted(t *testing.T) {
	f := newFixture(t)
	asking := func(ips ...string) []byte {
		return network("net", "veth", `,"runtimeConfig":{"ips":["`+strings.Join(ips, `","`)+`"]}`)
	}
	p := f.added("a", asking("10.113.0.77", "fd00:113::77/64"))
	got := fmt.Sprint(p.ips())
	testkit.Check(t, got == "[10.113.0.77 fd00:113::77]", "ADD gives %s", got)
	for _, row := range []struct {
		ips   []string
		words []string
	}{
		{[]string{"10.113.0.77"}, []string{"10.113.0.77 is in use by", "a"}},
		{[]string{"10.113.0.78", "fd00:113::77"}, []string{"fd00:113::77 is in use by"}},
		{[]string{"10.9.9.9"}, []string{"10.9.9.9 is not available in 10.113.0.0/24"}},
	} {
		t.Run(strings.Join(row.ips, " "), func(t *testing.T) {
			f.in(t).refused(f.pod("b", asking(row.ips...)), types.ErrInternal, row.words...)
		})
	}
	b := f.added("b", asking("10.113.0.78"))
	if !slices.ContainsFunc(b.result.IPs,
		func(ip *types100.IPConfig) bool { return ip.Address.IP.String() == "10.113.0.78" }) {
		t.Errorf("ADD gives %s", text(t, b.result))
	}
	f.must(f.check(p))
}

// TestNoIPAMPlugin configures a missing IPAM plugin.
func TestNoIPAMPlugin(t *testing.T) {
	f := newFixture(t)
	f.must(f.del(f.added("first", network("net", "veth", ""))))
	before := f.left()
	p := f.pod("a", delegating("veth", `{"type":"missing"}`))
	p.request.Path = "/nowhere:" + t.TempDir()
	f.oneLine(f.add(p), "ipam.type", `"missing"`, "/nowhere")
	f.same(before, "ADD")
	status := func() error { return f.plugin.Status(t.Context(), p.request) }
	f.oneLine(f.host.Do(status), `"missing"`, "/nowhere")
}
