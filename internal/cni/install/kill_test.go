// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// envVictim has this program install, from the first word to the second, and die at the step in the rest.
const envVictim = "MUSTANG_INSTALL_VICTIM"

const envClient = "MUSTANG_INSTALL_CLIENT" // has it install the plugin's client too

// victim is the process that is killed. It returns the exit code if it was not.
func victim(words string) int {
	from, rest, _ := strings.Cut(words, " ")
	root, step, _ := strings.Cut(rest, " ")
	p := Place{BinDir: root + "/opt/cni/bin", ConfDir: root + "/etc/cni/net.d", ConfName: DefaultConfName,
		Client: os.Getenv(envClient) != ""}
	p.after = func(at string) {
		if at == step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	n := Network{CNIVersion: "1.1.0", Name: "pods", Link: "bridge",
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/16")}}
	text, err := n.Conflist()
	if err == nil {
		_, err = p.Install(context.Background(), from, text, false)
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	return 1
}

// TestKill9 kills an installation after each step, over nothing and over an older version, without and with the client.
// Each file is whole or missing, a configuration implies a plugin that runs, and the next installation clears up.
func TestKill9(t *testing.T) {
	for _, files := range [][]string{
		{"mustang-cni", "loopback", DefaultConfName}, {"mustang-cni-full", "loopback", "mustang-cni", DefaultConfName},
	} {
		for _, there := range []bool{false, true} {
			if !there && len(files) > 3 {
				continue // as without the client
			}
			for _, step := range []string{"stage", "commit"} {
				for _, file := range files {
					kill9(t, files, there, step+" "+file)
				}
			}
		}
	}
}

// kill9 kills an installation of files after a step of one of them.
func kill9(t *testing.T, files []string, there bool, at string) {
	t.Helper()
	step, file, _ := strings.Cut(at, " ")
	p := testPlace(t)
	root := strings.TrimSuffix(p.BinDir, "/opt/cni/bin")
	if there { // without the client
		mustInstall(t, p, conflist(t, network()))
		info := testkit.Must(os.Stat(program()))(t)
		for _, name := range []string{"/mustang-cni", "/loopback"} {
			testkit.Succeed(t, os.Truncate(p.BinDir+name, info.Size()+1)) // another build
		}
	}
	path := p.BinDir + "/" + file
	if file == DefaultConfName {
		path = p.Conf()
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envVictim+"="+program()+" "+root+" "+step+" "+path)
	if p.Client = len(files) > 3; p.Client {
		cmd.Env = append(cmd.Env, envClient+"=1")
	}
	out, err := cmd.CombinedOutput()
	testkit.Require(t, err != nil && err.Error() == "signal: killed", "%s %s: %v, %s", step, path, err, out)
	if text, err := os.ReadFile(p.Conf()); err == nil {
		_, err := PluginConfig(text)
		testkit.Check(t, err == nil, "%s %s: %v: %s", step, path, err, text)
		err = runs(p)
		testkit.Check(t, err == nil, "%s %s: a configuration without its plugin: %v", step, path, err)
	} else if there {
		t.Errorf("%s %s: %v", step, path, err)
	}
	mustInstall(t, p, conflist(t, network()))
	err = runs(p)
	testkit.Check(t, err == nil, "%s %s: %v", step, path, err)
	want := slices.Sorted(slices.Values(files))
	names := slices.Sorted(slices.Values(append(entries(t, p.BinDir), entries(t, p.ConfDir)...)))
	testkit.Check(t, slices.Equal(names, want), "%s %s: there are %v", step, path, names)
}

// runs requests the versions of the installed plugin.
func runs(p Place) error {
	cmd := exec.Command(p.BinDir + "/mustang-cni")
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	out, err := cmd.CombinedOutput()
	if err == nil && !strings.Contains(string(out), `"supportedVersions"`) {
		err = fmt.Errorf("it prints %s", out)
	}
	return err
}

// TestDisk installs onto disks that are full or read-only: each directory in turn.
func TestDisk(t *testing.T) {
	testkit.RequireRoot(t)
	for _, test := range []struct {
		name, options string
		flags         uintptr
		want          error
	}{
		{"full", "size=4k", 0, unix.ENOSPC},
		{"read-only", "", unix.MS_RDONLY, unix.EROFS},
	} {
		for _, which := range []string{"plugin", "conflist"} {
			t.Run(test.name+" for the "+which, func(t *testing.T) {
				p := testPlace(t)
				dir := p.BinDir
				if which == "conflist" {
					dir = p.ConfDir
				}
				testkit.Succeed(t, errors.Join(os.MkdirAll(p.BinDir, 0o755), os.MkdirAll(p.ConfDir, 0o755)))
				testkit.Succeed(t, unix.Mount("none", dir, "tmpfs", test.flags, test.options))
				defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
				if test.flags == 0 {
					writeFile(t, filepath.Join(dir, "other"), "x") // a page: all there is
				}
				before := tree(t, p)
				_, err := p.Install(t.Context(), program(), conflist(t, network()), false)
				testkit.Check(t, errors.Is(err, test.want), "%v, want %v", err, test.want)
				after := tree(t, p)
				testkit.Check(t, after == before, "before\n%s\nafter\n%s", before, after)
			})
		}
	}
}

// TestOddFiles has something other than a regular file in the place of a file: Install reports it at once, and replaces
// it if forced.
func TestOddFiles(t *testing.T) {
	for _, name := range []string{"mustang-cni", "loopback", "10-mustang.conflist"} {
		for what, place := range map[string]func(path string) error{
			"named pipe": func(path string) error { return unix.Mkfifo(path, 0o644) },
			"endless":    func(path string) error { return os.Symlink("/dev/zero", path) },
			"huge": func(path string) error {
				return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40))
			},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				p, n := testPlace(t), network()
				mustInstall(t, p, conflist(t, n))
				path := filepath.Join(p.BinDir, name)
				if name == p.ConfName {
					path = p.Conf()
				}
				testkit.Succeed(t, errors.Join(os.Remove(path), place(path)))
				for _, force := range []bool{false, true} {
					done := make(chan error, 1)
					go func() {
						_, err := p.Install(t.Context(), program(), conflist(t, n), force)
						done <- err
					}()
					select {
					case err := <-done:
						if refused := !force || name == "loopback"; (err != nil) != refused || refused &&
							!strings.Contains(err.Error(), path) {
							t.Errorf("with force %t: %v", force, err)
						}
					case <-time.After(20 * time.Second):
						t.Fatal("Install hangs")
					}
				}
			})
		}
	}
}
