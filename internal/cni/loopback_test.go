// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// TestLoopback calls the plugin by the name loopback, by that type, and the reference plugin: results and devices are the same.
func TestLoopback(t *testing.T) {
	testkit.RequireRoot(t)
	f := newFixtureOver(t, "/nowhere")
	f.requirePlugin("loopback")
	ours, err := program()
	f.must(err)
	named := filepath.Join(t.TempDir(), "loopback")
	f.must(os.Symlink(ours, named))
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0"} {
		var want string
		for _, plugin := range []string{filepath.Join(debianPlugins, "loopback"), named, ours} {
			config := fmt.Appendf(nil, `{"cniVersion":%q,"name":"cni-loopback","type":"loopback"}`, version)
			p := f.pod("lo", config)
			p.request.IfName = "other" // some runtimes pass another one
			conn := rtnl.In(p.Namespace)
			f.must(conn.SetUp("lo", false))
			call := func(verb string, config []byte) answer {
				return f.run(call{program: plugin, verb: verb, env: p.environment(), config: config})
			}
			stdout := f.worked(call("ADD", config)).stdout
			got := loopbackResult(t, stdout, p.request.Netns)
			if want == "" {
				want = got
			}
			if got != want {
				t.Errorf("%s of %s: result %v, want %v", version, plugin, got, want)
			}
			if lo, err := conn.Device("lo"); err != nil || !lo.Up {
				t.Errorf("%s of %s: the device is %+v, %v", version, plugin, lo, err)
			}
			again := loopbackResult(t, f.worked(call("ADD", withPrevious(config, stdout))).stdout, p.request.Netns)
			if again != want {
				t.Errorf("%s of %s: with a previous result %s, want %s", version, plugin, again, want)
			}
			if version != "0.3.1" { // which has no CHECK
				f.worked(call("CHECK", withPrevious(config, stdout)))
				f.must(conn.SetUp("lo", false))
				if a := call("CHECK", withPrevious(config, stdout)); a.exit == 0 {
					t.Errorf("%s of %s: CHECK of a device that is down worked", version, plugin)
				}
				f.must(conn.SetUp("lo", true))
			}
			f.worked(call("DEL", config))
			if lo, err := conn.Device("lo"); err != nil || lo.Up {
				t.Errorf("%s of %s: after DEL the device is %+v, %v", version, plugin, lo, err)
			}
			p.request.Netns = "/run/netns/gone"
			f.worked(call("DEL", config))
			p.request.Netns = ""
			f.worked(call("DEL", config))
		}
	}
	// Not the host's own.
	p := f.pod("host", []byte(`{"cniVersion":"1.0.0","name":"cni-loopback","type":"loopback"}`))
	p.request.Netns = f.host.Path()
	for _, verb := range []string{"ADD", "DEL"} {
		if a := f.run(call{program: named, verb: verb, env: p.environment(), config: p.request.Config}); a.exit == 0 {
			t.Errorf("%s of the host's device worked", verb)
		}
	}
	if lo, err := rtnl.In(f.host).Device("lo"); err != nil || !lo.Up {
		t.Errorf("the host's device is %+v, %v", lo, err)
	}
}

// loopbackResult is what runtimes read of a result: the reference plugin, of an older library, has the same with other empty keys.
func loopbackResult(t *testing.T, stdout, netns string) string {
	t.Helper()
	var result struct {
		CNIVersion string
		Interfaces []struct{ Name, MAC, Sandbox string }
		IPs        []struct {
			Interface int
			Address   string
		}
	}
	testkit.Succeed(t, json.Unmarshal([]byte(strings.ReplaceAll(stdout, netns, "NETNS")), &result))
	return fmt.Sprintf("%+v", result)
}
