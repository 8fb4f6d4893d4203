// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"mustang/internal/cni/record"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

func ofVersion(version string) []byte {
	return []byte(strings.Replace(string(network("net", "veth", "")), `"1.1.0"`, `"`+version+`"`, 1))
}

// TestVersion lists the versions, and runs all verbs in each.
func TestVersion(t *testing.T) {
	f := newBareFixture(t)
	all := []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	said := f.worked(f.run(call{verb: "VERSION", config: []byte(`{"cniVersion":"1.1.0"}`)}))
	info := testkit.Must((&version.PluginDecoder{}).Decode([]byte(said.stdout)))(f.t)
	testkit.Check(t, slices.Equal(info.SupportedVersions(), all) && strings.Contains(said.stdout, `"cniVersion":"1.1.0"`),
		"VERSION: %s", said.stdout)
	for _, version := range all {
		t.Run(version, func(t *testing.T) { f.in(t).verbsOf(version) })
	}
}

func (f *fixture) verbsOf(version string) {
	p := f.pod("a", ofVersion(version))
	result := f.result(f.runFor(p, "ADD"))
	testkit.Check(f.t, result.Version() == version, "the result is of version %s", result.Version())
	ips := 0
	switch typed := result.(type) {
	case *types040.Result:
		ips = len(typed.IPs)
		for _, ip := range typed.IPs {
			testkit.Check(f.t, ip.Version == map[bool]string{true: "4", false: "6"}[ip.Address.IP.To4() != nil],
				"%v is said to be of version %q", ip.Address, ip.Version)
		}
	case *types100.Result:
		ips = len(typed.IPs)
	}
	testkit.Check(f.t, ips == 2, "%d addresses: %v", ips, result)
	previous := testkit.Must(json.Marshal(result))(f.t)
	check := f.run(call{verb: "CHECK", env: p.environment(), config: withPrevious(p.request.Config, string(previous))})
	if version < "0.4.0" {
		f.failed(check, types.ErrIncompatibleCNIVersion, "CHECK")
	} else if f.worked(check).stdout != "" {
		f.t.Errorf("CHECK says %q", check.stdout)
	}
	valid := with(p.request.Config, `"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]`)
	for _, c := range []call{{verb: "GC", config: valid}, {verb: "STATUS", config: p.request.Config}} {
		c.env = []string{"CNI_PATH=/nowhere"}
		if a := f.run(c); version < "1.1.0" {
			f.failed(a, types.ErrIncompatibleCNIVersion, c.verb)
		} else if f.worked(a).stdout != "" {
			f.t.Errorf("%s says %q", c.verb, a.stdout)
		}
	}
	_, err := rtnl.In(p.Namespace).Device("eth0")
	testkit.Check(f.t, err == nil, "GC took what is valid: %v", err)
	for range 2 {
		a := f.worked(f.runFor(p, "DEL"))
		testkit.Check(f.t, a.stdout == "", "DEL says %q", a.stdout)
	}
}

// TestMisused runs the plugin against the protocol.
func TestMisused(t *testing.T) {
	f := newBareFixture(t)
	p := f.pod("a", network("net", "veth", ""))
	before := f.left()
	with := func(more ...string) []string { return append(p.environment(), more...) }
	long := "CNI_IFNAME=" + strings.Repeat("x", 16)
	other := f.pod("other", nil)
	f.must(netns.Delete(other.Name()))
	const (
		environment = types.ErrInvalidEnvironmentVariables
		netns       = types.ErrInvalidNetNS
		decoding    = types.ErrDecodingFailure
		config      = types.ErrInvalidNetworkConfig
	)
	for _, row := range []struct {
		name   string
		verb   string
		env    []string
		config string
		code   uint
		words  string
	}{
		{"nothing", "ADD", nil, "", environment, "CNI_CONTAINERID CNI_NETNS CNI_IFNAME CNI_PATH"},
		{"no namespace", "ADD", with("CNI_NETNS="), "", environment, "CNI_NETNS"},
		{"DEL of nothing", "DEL", nil, "", environment, "CNI_CONTAINERID CNI_IFNAME CNI_PATH"},
		{"CHECK of nothing", "CHECK", nil, "", environment, "CNI_CONTAINERID CNI_NETNS CNI_IFNAME CNI_PATH"},
		{"GC without path", "GC", nil, "", environment, "CNI_PATH"},
		{"STATUS without path", "STATUS", nil, "", environment, "CNI_PATH"},
		{"unknown verb", "UPDATE", with(), "", environment, "CNI_COMMAND UPDATE"},
		{"bad container ID", "ADD", with("CNI_CONTAINERID=../a"), "", environment, "../a"},
		{"bad interface name", "ADD", with("CNI_IFNAME=a/b"), "", environment, "/"},
		{"long interface name", "ADD", with(long), "", environment, "16"},
		{"namespace of nobody", "ADD", with("CNI_NETNS=/run/netns/nobody's"), "", netns, "/run/netns/nobody's"},
		{"namespace that went", "ADD", with("CNI_NETNS=" + other.Path()), "", netns, other.Path()},
		{"no namespace at all", "ADD", with("CNI_NETNS=/etc/passwd"), "", netns, "/etc/passwd"},
		{"namespace of another sort", "ADD", with("CNI_NETNS=/proc/self/ns/mnt"), "", netns, "/proc/self/ns/mnt"},
		{"the host's own", "ADD", with("CNI_NETNS=" + f.host.Path()), "", netns, f.host.Path()},
		{"unknown version", "ADD", with(), string(ofVersion("9.9.9")), types.ErrIncompatibleCNIVersion, "9.9.9"},
		{"old version", "ADD", with(), string(ofVersion("0.2.0")), types.ErrIncompatibleCNIVersion, "0.2.0"},
		{"no version", "ADD", with(), string(ofVersion("")), types.ErrIncompatibleCNIVersion, "0.1.0"},
		{"version that is none", "CHECK", with(), string(ofVersion("new")), decoding, "new"},
		{"no JSON", "ADD", with(), "nonsense", decoding, "config"},
		{"nothing to read", "ADD", with(), " ", decoding, "config"},
		{"no name", "ADD", with(), `{"cniVersion":"1.1.0"}`, config, "name"},
		{"bad name", "ADD", with(), `{"cniVersion":"1.1.0","name":"../etc"}`, config, "../etc"},
		{"unknown key", "ADD", with(), string(network("net", "veth", `,"lnk":"veth"`)), types.ErrUnsupportedField,
			`lnk "veth"`},
		{"result of another", "ADD", with(), string(network("net", "veth", `,"prevResult":{"cniVersion":"1.1.0"}`)), config,
			"prevResult"},
		{"CHECK without result", "CHECK", with(), "", config, "prevResult"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.config == "" {
				row.config = string(p.request.Config)
			}
			f := f.in(t)
			f.failed(f.run(call{verb: row.verb, env: row.env, config: []byte(row.config)}), row.code,
				strings.Fields(row.words)...)
			f.same(before, row.name)
		})
	}
	// Without a verb it prints its name, like the reference plugins.
	if a := f.run(call{}); a.exit != 0 || !strings.Contains(a.stderr, "CNI plugin mustang-cni") {
		t.Errorf("exit code %d, %q", a.exit, a.stderr)
	}
}

var stopSignals = []os.Signal{unix.SIGINT, unix.SIGTERM} // the signals that end a process

// waitsFor reports whether a process waits for a file lock, by /proc/locks.
func waitsFor(locks string, pid int) bool {
	for line := range strings.Lines(locks) {
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1] == "->" && fields[2] == "FLOCK" && fields[5] == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// TestSignalled sends signals to fast verbs that wait for a lock: they finish.
func TestSignalled(t *testing.T) {
	f := newBareFixture(t)
	p := f.pod("a", network("net", "veth", ""))
	for _, verb := range []string{"ADD", "DEL"} {
		dir := filepath.Join(f.plugin.StateDir, "net")
		unlock := testkit.Must(record.Store{Root: f.plugin.StateDir}.Lock("net"))(f.t)
		r := f.start(call{verb: verb, env: p.environment(), config: p.request.Config})
		waiting := func() error {
			if locks, err := os.ReadFile("/proc/locks"); err != nil || !waitsFor(string(locks), r.cmd.Process.Pid) {
				return fmt.Errorf("%s does not wait for %s: %v", verb, dir, err)
			}
			return nil
		}
		testkit.Eventually(t, 10*time.Second, waiting)
		for _, signal := range stopSignals {
			f.must(r.cmd.Process.Signal(signal))
		}
		time.Sleep(50 * time.Millisecond)
		testkit.Succeed(t, waiting())
		unlock()
		f.worked(r.wait())
		has, err := rtnl.In(p.Namespace).HasDevice("eth0")
		testkit.Check(t, err == nil && has == (verb == "ADD"), "after %s there is a device: %t, %v", verb, has, err)
	}
}

// TestSignalledEarly sends signals to verbs whose configuration does not end: they end, and nothing has changed.
func TestSignalledEarly(t *testing.T) {
	f := newBareFixture(t)
	p := f.pod("a", network("net", "veth", ""))
	before := f.left()
	for _, verb := range []string{"ADD", "DEL", "GC"} {
		for _, signal := range stopSignals {
			config, end, err := os.Pipe()
			f.must(err)
			r := f.start(call{verb: verb, env: p.environment(), input: config})
			f.must(r.cmd.Process.Signal(signal))
			a := r.wait()
			testkit.Check(t, a.exit == -1, "%s: %+v", verb, a)
			f.must(errors.Join(config.Close(), end.Close()))
			f.same(before, verb+" that was signalled early")
		}
	}
}

// TestSignalledDelegate sends signals to an ADD that waits for an IPAM plugin: it stops waiting and undoes its steps.
func TestSignalledDelegate(t *testing.T) {
	for _, signal := range stopSignals {
		t.Run(fmt.Sprint(signal), func(t *testing.T) {
			f := newFixture(t)
			dir, path, p := f.delegated()
			before := f.left()
			f.must(os.WriteFile(path+".hang", []byte("ADD"), 0o600))
			r := f.start(call{verb: "ADD", env: p.environment(dir), config: p.request.Config})
			testkit.Eventually(t, 10*time.Second, func() error {
				if log, err := os.ReadFile(path + ".log"); err != nil || string(log) != "ADD a eth0\n" {
					return fmt.Errorf("calls %q, %v; want the ADD", log, err)
				}
				return nil
			})
			f.must(r.cmd.Process.Signal(signal))
			a := r.wait()
			testkit.Check(t, a.exit != 0, "ADD succeeded: %s", a.stdout)
			got := f.called(path)
			testkit.Check(t, slices.Equal(got, []string{"ADD a eth0", "DEL a eth0"}), "calls %q", got)
			f.same(before, "an interrupted ADD")
		})
	}
}
