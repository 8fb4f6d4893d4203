// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/testkit"
)

// envVictim has this program install, from the first word to the second, and die at
// the step in the rest.
const envVictim = "MUSTANG_INSTALL_VICTIM"

// envClient has it install the plugin's client too.
const envClient = "MUSTANG_INSTALL_CLIENT"

// victim is the process that is killed. It returns the exit code if it was not.
func victim(words string) int {
	from, rest, _ := strings.Cut(words, " ")
	root, step, _ := strings.Cut(rest, " ")
	p := Place{BinDir: root + "/opt/cni/bin", ConfDir: root + "/etc/cni/net.d", ConfName: DefaultConfName, Client: os.Getenv(envClient) != ""}
	p.after = func(at string) {
		if at == step {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	n := Network{CNIVersion: "1.1.0", Name: "pods", Link: "bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/16")}}
	text, err := n.Conflist()
	if err == nil {
		_, err = p.Install(context.Background(), from, text, false)
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	return 1
}

// TestKill9 kills an installation after each step, with nothing there before and with
// an older version there, without and with the client. Each file is whole or not there, there is no
// configuration without a plugin that runs, and the next installation clears up.
func TestKill9(t *testing.T) {
	for _, files := range [][]string{
		{"mustang-cni", "loopback", DefaultConfName}, {"mustang-cni-full", "loopback", "mustang-cni", DefaultConfName},
	} {
		for _, there := range []bool{false, true} {
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
		for _, name := range []string{"/mustang-cni", "/loopback"} {
			if err := os.Truncate(p.BinDir+name, sizeOf(t, program())+1); err != nil { // another build
				t.Fatal(err)
			}
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
	if out, err := cmd.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
		t.Fatalf("%s %s: %v, %s", step, path, err, out)
	}
	if text, err := os.ReadFile(p.Conf()); err == nil {
		if _, err := PluginConfig(text); err != nil {
			t.Errorf("%s %s: %v: %s", step, path, err, text)
		}
		if err := runs(p); err != nil {
			t.Errorf("%s %s: a configuration without its plugin: %v", step, path, err)
		}
	} else if there {
		t.Errorf("%s %s: %v", step, path, err)
	}
	mustInstall(t, p, conflist(t, network()))
	if err := runs(p); err != nil {
		t.Errorf("%s %s: %v", step, path, err)
	}
	want := slices.Sorted(slices.Values(files))
	if names := slices.Sorted(slices.Values(append(entries(t, p.BinDir), entries(t, p.ConfDir)...))); !slices.Equal(names, want) {
		t.Errorf("%s %s: there are %v", step, path, names)
	}
}

// runs has the installed plugin tell its versions.
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

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info := testkit.Must(os.Stat(path))(t)
	return info.Size()
}
