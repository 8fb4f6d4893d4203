// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/testkit"
)

// fakeIPAM is the name under which the test binary is an IPAM plugin. It appends its calls
// to the file NAME.log, fails at the verb in NAME.fail, hangs at the verb in NAME.hang
// while that file exists, and returns the result in NAME.result, or the routes in NAME.routes.
const fakeIPAM = "mst-fake-ipam"

func runFakeIPAM(path, verb string) error {
	file, err := os.OpenFile(path+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := fmt.Fprintln(file, verb, os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME")); err != nil {
		return err
	}
	for {
		if hangs, err := os.ReadFile(path + ".hang"); err != nil || string(hangs) != verb {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if fails, err := os.ReadFile(path + ".fail"); err == nil && string(fails) == verb {
		return fmt.Errorf(`{"cniVersion":"1.1.0","code":100,"msg":"no %s today"}`, verb)
	}
	if verb == "ADD" {
		if result, err := os.ReadFile(path + ".result"); err == nil {
			fmt.Print(string(result))
			return nil
		}
		routes, err := os.ReadFile(path + ".routes")
		if err != nil {
			routes = []byte(`{"dst":"0.0.0.0/0"}`)
		}
		fmt.Printf(`{"cniVersion":"1.1.0","ips":[{"address":"10.77.0.9/24","gateway":"10.77.0.1"},{"address":"fd00:77::9/`+
			`64","gateway":"fd00:77::1"}],
			"routes":[%s],"dns":{"nameservers":["10.77.0.53"]}}`, routes)
	}
	return nil
}

// newFakeIPAM links the fake plugin into a directory of its own.
func (f *fixture) newFakeIPAM() (dir, path string) {
	f.t.Helper()
	dir = f.t.TempDir()
	self := testkit.Must(os.Executable())(f.t)
	path = filepath.Join(dir, fakeIPAM)
	f.must(os.Symlink(self, path))
	return dir, path
}

// delegated is a pod of a network with the fake plugin, whose shared state exists.
func (f *fixture) delegated() (dir, path string, p *pod) {
	f.t.Helper()
	dir, path = f.newFakeIPAM()
	p = f.pod("a", delegating("veth", `{"type":"`+fakeIPAM+`"}`))
	f.worked(f.runFor(p, "ADD", dir))
	f.worked(f.runFor(p, "DEL", dir))
	f.called(path)
	return dir, path, p
}

// called returns the calls of the fake plugin since the last time.
func (f *fixture) called(path string) []string {
	f.t.Helper()
	data, err := os.ReadFile(path + ".log")
	if os.IsNotExist(err) {
		return nil
	}
	f.must(err)
	f.must(os.Remove(path + ".log"))
	var calls []string
	for line := range strings.Lines(string(data)) {
		calls = append(calls, strings.TrimSpace(line))
	}
	return calls
}

func delegating(mode, ipam string) []byte {
	return fmt.Appendf(nil,
		`{"cniVersion":"1.1.0","name":"net","type":"mustang-cni","link":%q,"services":"tc","parent":"uplink","ipam":%s}`,
		mode, ipam)
}

// TestDelegation checks that an IPAM plugin gets each verb and that its result is passed on.
func TestDelegation(t *testing.T) {
	f := newFixture(t)
	dir, path := f.newFakeIPAM()
	fail := func(verb string) { f.must(os.WriteFile(path+".fail", []byte(verb), 0o600)) }
	p := f.pod("a", delegating("veth", `{"type":"`+fakeIPAM+`","any":{"key":[1]}}`))
	expect := func(verb string, calls ...string) {
		t.Helper()
		got := f.called(path)
		testkit.Check(t, slices.Equal(got, calls), "%s calls %q, want %q", verb, got, calls)
	}
	f.worked(f.runFor(p, "DEL", dir)) // of what was never there
	expect("DEL before ADD", "DEL a eth0")
	f.worked(f.runFor(p, "ADD", dir)) // makes what stays
	f.worked(f.runFor(p, "DEL", dir))
	expect("ADD and DEL", "ADD a eth0", "DEL a eth0")
	before := f.left()

	f.told(p, f.runFor(p, "ADD", dir))
	if got := fmt.Sprint(p.ips()); got != "[10.77.0.9 fd00:77::9]" || gateway(p, 1).String() != "fd00:77::1" {
		t.Errorf("ADD gives %s: %s", got, text(t, p.result))
	}
	f.reach(f.host, p.Namespace, p.ips()[0])
	f.reach(p.Namespace, f.host, gateway(p, 1))
	expect("ADD", "ADD a eth0")
	f.worked(f.runFor(p, "CHECK", dir))
	expect("CHECK", "CHECK a eth0")
	fail("CHECK")
	f.failed(f.runFor(p, "CHECK", dir), 100, "no CHECK today")
	expect("CHECK", "CHECK a eth0")
	f.worked(f.runFor(p, "STATUS", dir))
	expect("STATUS", "STATUS a eth0")
	fail("STATUS")
	f.failed(f.runFor(p, "STATUS", dir), codeNotAvailable, "no STATUS today")
	expect("STATUS", "STATUS a eth0")
	valid := with(p.request.Config, `"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]`)
	gc := call{verb: "GC", env: []string{"CNI_PATH=" + dir}, config: valid}
	f.worked(f.run(gc))
	expect("GC", "GC")
	fail("GC")
	f.failed(f.run(gc), 100, "no GC today")
	expect("GC", "GC")

	fail("DEL")
	f.failed(f.runFor(p, "DEL", dir), 100, "no DEL today")
	expect("DEL", "DEL a eth0")
	fail("")
	f.worked(f.runFor(p, "DEL", dir))
	f.worked(f.runFor(p, "DEL", dir))
	expect("DEL", "DEL a eth0", "DEL a eth0")
	f.same(before, "DEL")
}

// TestDelegatedAddFails fails in the IPAM plugin, and after it: the plugin gets a DEL.
func TestDelegatedAddFails(t *testing.T) {
	f := newFixture(t)
	dir, path, p := f.delegated()
	before := f.left()
	f.must(os.WriteFile(path+".fail", []byte("ADD"), 0o600))
	f.failed(f.runFor(p, "ADD", dir), 100, "no ADD today")
	got := f.called(path)
	testkit.Check(t, slices.Equal(got, []string{"ADD a eth0", "DEL a eth0"}), "calls %q", got)
	f.same(before, "ADD of the other plugin")
	f.must(os.Remove(path + ".fail"))
	p.request.Config = []byte(strings.Replace(string(p.request.Config), `"veth"`, `"macvlan"`, 1))
	p.request.Config = []byte(strings.Replace(string(p.request.Config), `"uplink"`, `"missing"`, 1))
	f.failed(f.runFor(p, "ADD", dir), types.ErrInvalidNetworkConfig, `"missing"`)
	got = f.called(path)
	testkit.Check(t, slices.Equal(got, []string{"ADD a eth0", "DEL a eth0"}), "calls %q", got)
	f.same(before, "ADD without parent")
	f.failed(f.runFor(p, "ADD"), types.ErrInternal, fakeIPAM, "/nowhere")
	f.same(before, "ADD without the other plugin")
}

// TestIPAMOfOlderVersion has an IPAM plugin that does not support the version of the configuration: ADD fails, and DEL
// has nothing to delete. DEL of a pod with an address fails until the plugin supports the version.
func TestIPAMOfOlderVersion(t *testing.T) {
	f := newFixture(t)
	f.requirePlugin("host-local")
	dir := t.TempDir()
	config := func(version string) []byte {
		ipam := fmt.Sprintf(`{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.78.0.0/24"}]]}`, dir)
		return []byte(strings.Replace(string(delegating("veth", ipam)), "1.1.0", version, 1))
	}
	first := f.pod("first", config("1.0.0"))
	f.worked(f.runFor(first, "ADD", debianPlugins))
	later := *first
	later.request.Config = config("1.1.0")
	f.failed(f.runFor(&later, "DEL", debianPlugins), types.ErrIncompatibleCNIVersion, "1.1.0")
	f.worked(f.runFor(first, "DEL", debianPlugins))
	left, _ := filepath.Glob(filepath.Join(dir, "net", "10.*"))
	testkit.Check(t, len(left) == 0, "left are %q", left)
	before := f.left()
	p := f.pod("a", config("1.1.0"))
	f.failed(f.runFor(p, "ADD", debianPlugins), types.ErrIncompatibleCNIVersion, "1.1.0")
	f.same(before, "ADD")
	f.worked(f.runFor(p, "DEL", debianPlugins))
	f.same(before, "DEL")
}

// TestReferenceIPAM assigns addresses with Debian's plugins.
func TestReferenceIPAM(t *testing.T) {
	const place = "/the/directory"
	for _, row := range []struct{ plugin, config, first string }{
		{"host-local", `{"type":"host-local","dataDir":"` + place +
			`","ranges":[[{"subnet":"10.78.0.0/24"}],[{"subnet":"fd00:78::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}`,
			"[10.78.0.2 fd00:78::2]"},
		{"static", `{"type":"static","addresses":[{"address":"10.79.0.7/24","gateway":"10.79.0.1"},{"address":"fd00:79::7/` +
			`64","gateway":"fd00:79::1"}]}`,
			"[10.79.0.7 fd00:79::7]"},
	} {
		for _, mode := range crashModes {
			t.Run(row.plugin+"/"+mode, func(t *testing.T) {
				t.Parallel()
				f, dir := newFixture(t), t.TempDir()
				f.requirePlugin(row.plugin)
				// Debian's plugins support versions up to 1.0.0.
				config := strings.NewReplacer("1.1.0", "1.0.0", place, dir).Replace(string(delegating(mode, row.config)))
				p := f.pod("a", []byte(config))
				f.told(p, f.runFor(p, "ADD", debianPlugins))
				got := fmt.Sprint(p.ips())
				testkit.Check(t, got == row.first, "ADD gives %s, want %s", got, row.first)
				for i, ip := range p.ips() {
					f.reach(f.host, p.Namespace, ip)
					f.reach(p.Namespace, f.host, gateway(p, i))
				}
				f.worked(f.runFor(p, "CHECK", debianPlugins))
				if row.plugin == "host-local" {
					f.must(os.Remove(filepath.Join(dir, "net", p.ips()[0].String())))
					f.must(os.Remove(filepath.Join(dir, "net", p.ips()[1].String())))
					f.failed(f.runFor(p, "CHECK", debianPlugins), types.ErrInternal, "host-local")
				}
				f.worked(f.runFor(p, "DEL", debianPlugins))
				f.worked(f.runFor(p, "DEL", debianPlugins))
				left, _ := filepath.Glob(filepath.Join(dir, "net", "[1f]*"))
				testkit.Check(t, len(left) == 0, "left are %q", left)
			})
		}
	}
}
