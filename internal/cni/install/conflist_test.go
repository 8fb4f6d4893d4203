// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mustang/internal/cni/netconf"
	"mustang/internal/testkit"
)

// TestConflist parses the written configuration with the plugin's code.
func TestConflist(t *testing.T) {
	n := Network{
		CNIVersion: "1.0.0", Name: "pods", Link: "ipvlan-l2", Parent: "eth1", Bridge: "br7", MTU: 1400, Services: "tc",
		Masquerade: true,
		Subnets:    []netip.Prefix{netip.MustParsePrefix("fd00:1::/64"), netip.MustParsePrefix("10.1.0.0/16")},
	}
	c := reread(t, n)
	testkit.Check(t, c.CNIVersion == n.CNIVersion && c.Name == n.Name && c.Link == n.Link && c.Parent == n.Parent &&
		c.Bridge == n.Bridge && c.MTU == n.MTU && c.Services == n.Services && c.Masquerade,
		"got %+v, want %+v", c, n)
	for i, want := range n.Subnets {
		testkit.Check(t, len(c.IPAM.Sets) == len(n.Subnets) && c.IPAM.Sets[i][0].Subnet == want,
			"got %v, want %v", c.IPAM.Sets, n.Subnets)
	}
}

// reread is the plugin's view of the written configuration.
func reread(t *testing.T, n Network) netconf.Config {
	t.Helper()
	config := testkit.Must(PluginConfig(conflist(t, n)))(t)
	return testkit.Must(netconf.Parse(config))(t)
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestConflistRouter has another router be the gateway.
func TestConflistRouter(t *testing.T) {
	n := network()
	n.Link, n.Gateways, n.HostAddresses = "macvlan", addrs("fe80::1", "10.77.0.9"), addrs("10.77.0.2", "fd00:77::2")
	c := reread(t, n)
	testkit.Check(t, slices.Equal(c.HostAddresses, n.HostAddresses) && c.IPAM.Sets[0][0].Gateway == n.Gateways[1] &&
		c.IPAM.Sets[1][0].Gateway == n.Gateways[0],
		"got %+v, want %+v", c, n)
}

// TestConflistErrors names the values that the plugin would refuse.
func TestConflistErrors(t *testing.T) {
	for culprit, change := range map[string]func(*Network){
		`"2.0.0"`:                            func(n *Network) { n.CNIVersion = "2.0.0" },
		`"../x"`:                             func(n *Network) { n.Name = "../x" },
		`name ""`:                            func(n *Network) { n.Name = "" },
		`parent: invalid device name "a/b"`:  func(n *Network) { n.Parent = "a/b" },
		"ranges":                             func(n *Network) { n.Subnets = nil },
		"already has the gateway 10.77.0.9":  func(n *Network) { n.Gateways = addrs("10.77.0.9", "10.77.0.8") },
		"gateway: fe80::1: there is":         func(n *Network) { n.Gateways, n.Subnets = addrs("fe80::1"), n.Subnets[:1] },
		"10.78.0.1 is not an address of 10.": func(n *Network) { n.Gateways = addrs("10.78.0.1") },
		"hostAddresses":                      func(n *Network) { n.HostAddresses = addrs("10.77.0.2") },
	} {
		n := network()
		change(&n)
		_, err := n.Conflist()
		testkit.Check(t, err != nil && strings.Contains(err.Error(), culprit) && !strings.Contains(err.Error(), "\n"),
			"got %v, want one line with %s", err, culprit)
	}
}

// TestFindPlugin looks beside the program, then where Debian's packages have plugins.
func TestFindPlugin(t *testing.T) {
	root := t.TempDir()
	_, err := FindPlugin(root + "/bin/mustang")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), root+"/bin/mustang-cni"), "%v", err)
	for _, want := range []string{root + "/lib/cni/mustang-cni", root + "/bin/mustang-cni"} {
		writeFile(t, want, "")
		testkit.Succeed(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
		got, err := FindPlugin(root + "/bin/mustang")
		testkit.Check(t, err == nil && got == want, "got %q, %v, want %q", got, err, want)
	}
}

// TestPlaceCheck refuses names that runtimes don't read, or that lead elsewhere.
func TestPlaceCheck(t *testing.T) {
	for _, name := range []string{"", "x.conf", "../x.conflist", "a/x.conflist", ".conflist", ".x.conflist", ".."} {
		p := testPlace(t)
		p.ConfName = name
		err := p.Check()
		testkit.Check(t, err != nil, "%q is taken", name)
	}
	testkit.Succeed(t, testPlace(t).Check())
	testkit.Check(t, (Place{ConfDir: "x", ConfName: DefaultConfName}).Check() != nil &&
		(Place{BinDir: "x", ConfName: DefaultConfName}).Check() != nil,
		"no directory is taken")
}

// TestClientProgram has a static program for each architecture, with one place for its version.
func TestClientProgram(t *testing.T) {
	for path, machine := range map[string]elf.Machine{"client_amd64": elf.EM_X86_64, "client_arm64": elf.EM_AARCH64} {
		file := testkit.Must(elf.Open(path))(t)
		defer file.Close()
		dynamic := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool {
			return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC
		})
		testkit.Check(t, file.Machine == machine && !dynamic, "%s: %v, linked dynamically %v", path, file.Machine, dynamic)
		text := testkit.Must(os.ReadFile(path))(t)
		empty := append([]byte(place), make([]byte, placeSize-len(place))...)
		testkit.Check(t, bytes.Count(text, []byte(place)) == 1 && bytes.Contains(text, empty),
			"%s: no place for a version", path)
		stamped := stamp(text, "1.2.3", "4")
		testkit.Check(t, len(stamped) == len(text) && bytes.Contains(stamped, []byte("1.2.3\x004\x00")) && isClient(stamped),
			"%s is not stamped", path)
		testkit.Check(t, bytes.Equal(stamp(text, strings.Repeat("1", placeSize), "4"), text), "%s: a version is cut", path)
	}
	testkit.Check(t, isClient(Client()), "the program of this processor is not known as one")
}

var built string // the directory with the programs that tests install

func TestMain(m *testing.M) {
	if words := os.Getenv(envVictim); words != "" {
		os.Exit(victim(words))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mustang-install")
		if err == nil {
			defer os.RemoveAll(dir)
			built = dir
			build := exec.Command("go", "build", "-o", dir+"/", "mustang/cmd/mustang-cni")
			build.Env = append(os.Environ(), "CGO_ENABLED=0")
			build.Stderr = os.Stderr
			err = build.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func program() string { return filepath.Join(built, "mustang-cni") }

// testPlace is a place in directories that are not there yet.
func testPlace(t *testing.T) Place {
	dir := t.TempDir()
	return Place{BinDir: dir + "/opt/cni/bin", ConfDir: dir + "/etc/cni/net.d", ConfName: DefaultConfName}
}

func network() Network {
	return Network{CNIVersion: "1.1.0", Name: "pods", Link: "veth", Services: "both", Subnets: []netip.Prefix{
		netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("fd00:77::/64"),
	}}
}

func conflist(t *testing.T, n Network) []byte {
	t.Helper()
	return testkit.Must(n.Conflist())(t)
}

func mustInstall(t *testing.T, p Place, text []byte) []string {
	t.Helper()
	changes := testkit.Must(p.Install(t.Context(), program(), text, false))(t)
	return done(changes)
}

func done(changes []Change) (out []string) {
	for _, c := range changes {
		out = append(out, c.Done)
	}
	return out
}

// tree is all files below a place's directories: names, modes, inodes, sizes and
// times, so that a rewritten file differs.
func tree(t *testing.T, p Place) string {
	t.Helper()
	var out []string
	root := strings.TrimSuffix(p.BinDir, "/opt/cni/bin")
	testkit.Succeed(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		line := fmt.Sprint(path, " ", info.Mode())
		if info.Mode().IsRegular() {
			line += fmt.Sprint(" ", info.Size(), info.ModTime().UnixNano())
		}
		out = append(out, line)
		return nil
	}))
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list := testkit.Must(os.ReadDir(dir))(t)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	testkit.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}
