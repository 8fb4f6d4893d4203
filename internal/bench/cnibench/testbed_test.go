// SPDX-License-Identifier: Apache-2.0

package cnibench

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// newTestbed returns a testbed in a lab of its own, with the reference bridge.
func newTestbed(t *testing.T) (*Testbed, Plugin) {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "/usr/lib/cni/bridge")
	o := LabOptions()
	o.Name, o.Disk = "cnibench", t.TempDir()
	l, err := lab.Store{Dir: t.TempDir()}.Up(t.Context(), o)
	testkit.Succeed(t, err)
	testbed, err := NewTestbed(l)
	testkit.Succeed(t, err)
	t.Cleanup(func() {
		testbed.Close()
		err := l.Close()
		testkit.Check(t, err == nil, "%v", err)
		left, err := os.ReadDir(o.Disk)
		testkit.Check(t, err == nil && len(left) == 0, "left on disk: %v, %v", left, err)
	})
	bridge := Reference("bridge", map[string]any{"bridge": "cni0", "isGateway": true})
	bridge.Network, bridge.Subnet = "bench", netip.MustParsePrefix("10.80.0.0/16")
	return testbed, bridge
}

// TestProveFindsContradictions runs plugins that don't do what they report. Each is
// refused, and an honest plugin works after it.
func TestProveFindsContradictions(t *testing.T) {
	testbed, bridge := newTestbed(t)
	testkit.RequireTool(t, "nsenter")
	for name, test := range map[string]struct{ script, reason string }{
		"error": {`printf '{"code": 999, "msg": "no way", "details": "at all"}'; exit 1`, "ADD: no way at all"},
		"crash": {`echo broken >&2; exit 3`, "exit status 3: broken"},
		"no attachment": {`[ $CNI_COMMAND = ADD ] && echo '{"ips": [{"address": "10.80.0.9/16", "gateway": ` +
			`"10.80.0.1"}]}'; true`,
			"eth0"},
		"another address": {`honest | sed 's/"10.80.0.\([0-9]*\)\/16"/"10.80.9.\1\/16"/'`, "the result has 10.80.9."},
		"no result":       {`honest >/dev/null`, "result of ADD"},
		"no gateway": {`honest && nsenter --net=$CNI_NETNS ip route replace unreachable 10.80.0.1`,
			"cannot reach its gateway"},
		"DEL does nothing": {`[ $CNI_COMMAND = DEL ] || honest`,
			"has 2 devices after DEL, want 1"},
		"DEL keeps the address": {
			`if [ $CNI_COMMAND = DEL ]; then nsenter --net=$CNI_NETNS ip link del eth0; else honest; fi`,
			"is still reserved after DEL"},
		"DEL leaves a device": {`honest; [ $CNI_COMMAND = ADD ] || ip link add left type veth peer name right`,
			"the host still has veth"},
	} {
		t.Run(name, func(t *testing.T) {
			honest, broken := bridge, bridge
			broken.Path = filepath.Join(t.TempDir(), "broken")
			text := "#!/bin/sh\nhonest() { /usr/lib/cni/bridge; }\n" + test.script + "\n"
			testkit.Succeed(t, os.WriteFile(broken.Path, []byte(text), 0o700))
			err := testbed.Prove(t.Context(), &broken)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), test.reason),
				"error %v, want one with %q", err, test.reason)
			var contradiction *evidence.Error
			calls := strings.Contains(test.script, "exit")
			testkit.Check(t, errors.As(err, &contradiction) != calls, "error %v: is a contradiction: %t", err, !calls)
			again := testbed.Prove(t.Context(), &broken)
			testkit.Check(t, errors.Is(again, err), "second error %v, want %v", again, err)
			err = testbed.Prove(t.Context(), &honest)
			testkit.Check(t, err == nil, "honest plugin: %v", err)
		})
	}
}

// TestProbeNamesMissingProgram checks the errors for programs that are not installed:
// they name the package, or the command that builds the program.
func TestProbeNamesMissingProgram(t *testing.T) {
	p := Reference("nothing-of-that-name", nil)
	if err := p.Probe(); err == nil || !strings.Contains(err.Error(), "containernetworking-plugins") {
		t.Errorf("reference plugin: %v", err)
	}
	p = Mustang(ServicesOff, nil)
	p.Path = filepath.Join(t.TempDir(), mustangCNI)
	err := p.Probe()
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "make build"), "mustang-cni: %v", err)
}

// TestMustangConfigurationHasSettings checks that settings reach the configuration, and that a previous result does.
func TestMustangConfigurationHasSettings(t *testing.T) {
	p := Mustang(ServicesSocket, map[string]any{"link": "macvlan"})
	p.Subnet = netip.MustParsePrefix("10.1.0.0/16")
	config, err := p.config(lab.PluginDirs{State: "/state"}, []byte(`{"ips":[]}`))
	testkit.Succeed(t, err)
	for _, want := range []string{`"services":"socket"`, `"link":"macvlan"`, `"prevResult":{"ips":[]}`,
		`"subnet":"10.1.0.0/16"`} {
		testkit.Check(t, strings.Contains(string(config), want), "%s lacks %s", config, want)
	}
	testkit.Check(t, p.HasServices(), "a plugin with services at sockets has none")
}
