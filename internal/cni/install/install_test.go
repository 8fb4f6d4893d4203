// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"mustang/internal/lock"
	"mustang/internal/testkit"
)

// TestInstall installs for a runtime's own library, which reads the list, runs the plugin and finds all that the list
// names.
func TestInstall(t *testing.T) {
	for _, version := range Versions() {
		t.Run(version, func(t *testing.T) {
			p, n := testPlace(t), network()
			n.CNIVersion = version
			got := mustInstall(t, p, conflist(t, n))
			testkit.Check(t, slices.Equal(got, []string{"written", "written", "written"}), "changes %q", got)
			for path, mode := range map[string]fs.FileMode{p.BinDir + "/mustang-cni": 0o755, p.BinDir + "/loopback": 0o755,
				p.Conf(): 0o644} {
				info, err := os.Lstat(path)
				testkit.Check(t, err == nil && info.Mode() == mode, "%s: %v, %v, want %v", path, info, err, mode)
			}
			files, err := libcni.ConfFiles(p.ConfDir, []string{".conf", ".conflist", ".json"})
			testkit.Require(t, err == nil && slices.Equal(files, []string{p.Conf()}), "a runtime finds %v, %v", files, err)
			list := testkit.Must(libcni.ConfListFromFile(files[0]))(t)
			capabilities, err := libcni.NewCNIConfig([]string{p.BinDir}, nil).ValidateNetworkList(context.Background(), list)
			slices.Sort(capabilities)
			want := []string{"aliases", "bandwidth", "ips", "mac", "portMappings"}
			testkit.Check(t, err == nil && slices.Equal(capabilities, want),
				"capabilities %q, %v, want %q", capabilities, err, want)
		})
	}
}

// TestInstallTwice changes nothing the second time, and only what differs the third.
func TestInstallTwice(t *testing.T) {
	p, n := testPlace(t), network()
	mustInstall(t, p, conflist(t, n))
	before := tree(t, p)
	got := mustInstall(t, p, conflist(t, n))
	testkit.Check(t, slices.Equal(got, []string{"unchanged", "unchanged", "unchanged"}), "changes %q", got)
	after := tree(t, p)
	testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
	n.Link = "bridge"
	got = mustInstall(t, p, conflist(t, n))
	testkit.Check(t, slices.Equal(got, []string{"unchanged", "unchanged", "replaced"}), "changes %q", got)
	text, err := os.ReadFile(p.Conf())
	testkit.Check(t, err == nil && bytes.Equal(text, conflist(t, n)), "%s, %v", text, err)
	testkit.Succeed(t, os.Chmod(p.Conf(), 0o600))
	if got := mustInstall(t, p, conflist(t, n)); !slices.Equal(got, []string{"unchanged", "unchanged", "replaced"}) {
		t.Errorf("with another mode: changes %q", got)
	}
}

// TestUnchangedIsCheap repeats an installation, as an agent does whenever nodes come or go: it reads the plugin once.
func TestUnchangedIsCheap(t *testing.T) {
	p, text := testPlace(t), conflist(t, network())
	p.Client = true
	mustInstall(t, p, text)
	info := testkit.Must(os.Stat(program()))(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	mustInstall(t, p, text)
	runtime.ReadMemStats(&after)
	used := int64(after.TotalAlloc - before.TotalAlloc)
	testkit.Check(t, used <= 3*info.Size()/2, "%d bytes for a plugin of %d", used, info.Size())
}

// TestAtOnce installs and uninstalls many times at once.
func TestAtOnce(t *testing.T) {
	p := testPlace(t)
	var group sync.WaitGroup
	for i := range 8 {
		n := network()
		n.MTU = 1400 + i
		text := conflist(t, n)
		group.Go(func() {
			_, err := p.Install(t.Context(), program(), text, false)
			testkit.Check(t, err == nil, "%v", err)
			if i%2 == 0 {
				_, err := p.Uninstall(t.Context(), "")
				testkit.Check(t, err == nil, "%v", err)
			}
		})
	}
	group.Wait()
	mustInstall(t, p, conflist(t, network()))
	names := entries(t, p.BinDir)
	testkit.Check(t, slices.Equal(names, []string{"loopback", "mustang-cni"}), "left: %v", names)
}

// TestForeign leaves foreign files alone, unless it is forced to replace them.
func TestForeign(t *testing.T) {
	other := `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge"},{"type":"portmap"}]}`
	for name, test := range map[string]struct{ file, text, why string }{
		"another list":        {"conf", other, `plugin "bridge"`},
		"ours and another":    {"conf", `{"name":"x","plugins":[{"type":"mustang-cni"},{"type":"tuning"}]}`, `"tuning"`},
		"a single plugin":     {"conf", `{"name":"x","type":"mustang-cni"}`, "no plugins"},
		"no JSON":             {"conf", "hello", "not a list of plugins"},
		"an empty file":       {"conf", "", "not a list of plugins"},
		"a script":            {"plugin", "#!/bin/sh\nexit 0\n", "not a build of mustang-cni"},
		"another Go program":  {"plugin", "go", "but of"},
		"an empty executable": {"plugin", "", "not a build of mustang-cni"},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPlace(t)
			path := p.Conf()
			if test.file == "plugin" {
				path = p.BinDir + "/mustang-cni"
			}
			if test.text == "go" { // this test
				self := testkit.Must(os.ReadFile("/proc/self/exe"))(t)
				test.text = string(self)
			}
			writeFile(t, path, test.text)
			before := tree(t, p)
			_, err := p.Install(t.Context(), program(), conflist(t, network()), false)
			_, uninstallErr := p.Uninstall(t.Context(), "")
			for _, err := range []error{err, uninstallErr} {
				var foreign *ForeignError
				testkit.Check(t, errors.As(err, &foreign) && foreign.Path == path && strings.Contains(err.Error(), test.why) &&
					!strings.Contains(err.Error(), "\n"),
					"%v, want %s", err, test.why)
			}
			after := tree(t, p)
			testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
			changes, err := p.Install(t.Context(), program(), conflist(t, network()), true)
			testkit.Check(t, err == nil && slices.Contains(done(changes), "replaced"), "%v, %v", changes, err)
		})
	}
}

// TestForeignLoopback leaves the plugin loopback of another project, also by force, and an uninstallation does so too.
func TestForeignLoopback(t *testing.T) {
	p := testPlace(t)
	path := p.BinDir + "/loopback"
	writeFile(t, path, "#!/bin/sh\n")
	for _, force := range []bool{false, true} {
		changes, err := p.Install(t.Context(), program(), conflist(t, network()), force)
		testkit.Check(t, err == nil && changes[1].String() == "plugin "+path+" left: it belongs to another project",
			"%v, %v", changes, err)
	}
	changes, err := p.Uninstall(t.Context(), "")
	testkit.Check(t, err == nil && len(changes) == 3 && strings.HasPrefix(changes[1].Done, "left"), "%v, %v", changes, err)
	text, err := os.ReadFile(path)
	testkit.Check(t, err == nil && string(text) == "#!/bin/sh\n", "%s, %v", text, err)
	names := entries(t, p.BinDir)
	testkit.Check(t, slices.Equal(names, []string{"loopback"}), "left: %v", names)
}

// TestConflistAlone installs into a place without a directory of plugins.
func TestConflistAlone(t *testing.T) {
	p := testPlace(t)
	bin := p.BinDir
	p.BinDir = ""
	changes, err := p.Install(t.Context(), "", conflist(t, network()), false)
	testkit.Check(t, err == nil && slices.Equal(done(changes), []string{"written"}), "%v, %v", changes, err)
	_, err = os.Stat(bin)
	testkit.Check(t, errors.Is(err, fs.ErrNotExist), "the directory of plugins: %v", err)
}

// TestPluginAlone installs no configuration without a directory for it.
func TestPluginAlone(t *testing.T) {
	p := testPlace(t)
	p.ConfDir = ""
	got := mustInstall(t, p, nil)
	testkit.Check(t, slices.Equal(got, []string{"written", "written"}), "changes %q", got)
}

// TestNoPlugin has nothing to install, or something else.
func TestNoPlugin(t *testing.T) {
	p := testPlace(t)
	before := tree(t, p)
	for _, path := range []string{built + "/nothing", "/etc/passwd", "/proc/self/exe", built} {
		_, err := p.Install(t.Context(), path, conflist(t, network()), true)
		testkit.Check(t, err != nil && strings.Contains(err.Error(), path), "%s: %v", path, err)
	}
	after := tree(t, p)
	testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
}

// TestUninstall removes both files, and nothing twice.
func TestUninstall(t *testing.T) {
	p := testPlace(t)
	for _, want := range [][]string{{"absent", "absent", "absent"}, {"removed", "removed", "removed"},
		{"absent", "absent", "absent"}} {
		changes, err := p.Uninstall(t.Context(), program())
		testkit.Check(t, err == nil && slices.Equal(done(changes), want), "%v, %v, want %q", changes, err, want)
		testkit.Check(t, want[0] != "absent" || len(changes) == 0 || changes[0].What == "conflist",
			"%v: the configuration goes first", changes)
		_, err = os.Stat(p.Conf())
		testkit.Check(t, err != nil, "the configuration is still there")
		if _, err := os.Stat(p.BinDir); err != nil {
			mustInstall(t, p, conflist(t, network()))
		}
	}
	// Where the runtime looks into the package's own directory.
	p.BinDir = built
	mustInstall(t, p, conflist(t, network()))
	changes, err := p.Uninstall(t.Context(), program())
	if err != nil || len(changes) != 3 || changes[1].Done != "removed" || !strings.HasPrefix(changes[2].Done, "left") {
		t.Errorf("%v, %v", changes, err)
	}
	testkit.Must(os.Stat(program()))(t)
}

// TestClient installs the client in place of the plugin, which lies beside it, and removes both. A plugin that is the
// original stays.
func TestClient(t *testing.T) {
	p := testPlace(t)
	mustInstall(t, p, conflist(t, network()))
	p.Client = true
	for _, want := range [][]string{{"written", "unchanged", "replaced", "unchanged"}, {"unchanged", "unchanged",
		"unchanged", "unchanged"}} {
		got := mustInstall(t, p, conflist(t, network()))
		testkit.Check(t, slices.Equal(got, want), "changes %q, want %q", got, want)
	}
	text, err := os.ReadFile(p.BinDir + "/mustang-cni")
	testkit.Check(t, err == nil && isClient(text) && !isClient([]byte("#!/bin/sh\n")), "no client, %v", err)
	testkit.Succeed(t, runs(p))
	changes, err := p.Uninstall(t.Context(), program())
	testkit.Check(t, err == nil && slices.Equal(done(changes), []string{"removed", "removed", "removed", "removed"}) &&
		len(entries(t, p.BinDir)) == 0,
		"%v, %v, and there are %v", changes, err, entries(t, p.BinDir))
	p.BinDir = built
	defer os.Remove(built + "/loopback")
	mustInstall(t, p, conflist(t, network()))
	testkit.Succeed(t, noPlugin(testkit.Must(readFile(program()))(t)))
}

// TestBefore names the configurations that runtimes prefer.
func TestBefore(t *testing.T) {
	p := testPlace(t)
	mustInstall(t, p, conflist(t, network()))
	for _, name := range []string{"05-a.conflist", "05-a.bak", "11-b.conf", "00-c.json"} {
		writeFile(t, filepath.Join(p.ConfDir, name), "{}")
	}
	got, err := p.Before()
	testkit.Check(t, err == nil && slices.Equal(got, []string{"00-c.json", "05-a.conflist"}), "%v, %v", got, err)
}

// TestLockIsBounded waits for another installation no longer than the context allows, names it, and changes nothing.
func TestLockIsBounded(t *testing.T) {
	p := testPlace(t)
	mustInstall(t, p, conflist(t, network()))
	before := tree(t, p)
	held := testkit.Must(lock.Take(t.Context(), p.ConfDir, nil))(t)
	defer held.Unlock()
	ctx := lock.Wait{}.WithContext(t.Context())
	other := network()
	other.Link = "bridge"
	_, installErr := p.Install(ctx, program(), conflist(t, other), false)
	_, uninstallErr := p.Uninstall(ctx, "")
	for _, err := range []error{installErr, uninstallErr} {
		var held *lock.Error
		testkit.Check(t, errors.As(err, &held) && held.PID == os.Getpid() && held.Dir == p.ConfDir, "error %v", err)
	}
	after := tree(t, p)
	testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
}
