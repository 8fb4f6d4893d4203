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
)

// envVictim has this program install, from the first word to the second, and die at
// the step in the rest.
const envVictim = "MUSTANG_INSTALL_VICTIM"

// victim is the process that is killed. It returns the exit code if it was not.
func victim(words string) int {
	from, rest, _ := strings.Cut(words, " ")
	root, step, _ := strings.Cut(rest, " ")
	p := Place{BinDir: root + "/opt/cni/bin", ConfDir: root + "/etc/cni/net.d", ConfName: DefaultConfName}
	p.after = func(at string) error {
		if at == step {
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			if err := self.Kill(); err != nil {
				return err
			}
			select {}
		}
		return nil
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
// an older version there. Each file is whole or not there, there is no
// configuration without its plugin, and the next installation clears up.
func TestKill9(t *testing.T) {
	for _, there := range []bool{false, true} {
		for _, step := range []string{
			"stage %s/mustang-cni", "stage %s/loopback", "stage %s/10-mustang.conflist",
			"commit %s/mustang-cni", "commit %s/loopback", "commit %s/10-mustang.conflist",
		} {
			p := testPlace(t)
			root := strings.TrimSuffix(p.BinDir, "/opt/cni/bin")
			if there {
				mustInstall(t, p, conflist(t, network()))
				for _, name := range []string{"/mustang-cni", "/loopback"} {
					if err := os.Truncate(p.BinDir+name, sizeOf(t, program())+1); err != nil { // another build
						t.Fatal(err)
					}
				}
			}
			dir := p.BinDir
			if strings.HasSuffix(step, "conflist") {
				dir = p.ConfDir
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envVictim+"="+program()+" "+root+" "+fmt.Sprintf(step, dir))
			if out, err := cmd.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
				t.Fatalf("%s: %v, %s", step, err, out)
			}
			if text, err := os.ReadFile(p.Conf()); err == nil {
				if _, err := PluginConfig(text); err != nil {
					t.Errorf("%s: %v: %s", step, err, text)
				}
				if _, err := readPlugin(p.BinDir + "/mustang-cni"); err != nil {
					t.Errorf("%s: a configuration without its plugin: %v", step, err)
				}
			} else if there {
				t.Errorf("%s: %v", step, err)
			}
			mustInstall(t, p, conflist(t, network()))
			if names := append(entries(t, p.BinDir), entries(t, p.ConfDir)...); !slices.Equal(names, []string{"loopback", "mustang-cni", DefaultConfName}) {
				t.Errorf("%s: there are %v", step, names)
			}
		}
	}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
