// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"mustang/internal/vm"
)

// TestWrap checks the process that boots a guest for a command.
func TestWrap(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := guestPod{
		Name: "pod-a", TAP: "veth-pod-a", Kernel: vm.Kernel{Release: "6.12.1", Image: "/boot/x"}, Acceleration: vm.TCG,
		Network: vm.Network{
			MAC: "02:00:00:00:00:01", MTU: 1450,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.10/24")}, Gateways: []netip.Addr{netip.MustParseAddr("fd00::1")},
		},
	}
	for name, test := range map[string]struct {
		args, want []string
		cpu        int
	}{
		"no CPU":  {[]string{"agent", "--x"}, []string{"--x"}, -1},
		"CPU 3":   {[]string{"agent", "--cpu=3", "--x"}, []string{"--cpu=0", "--x"}, 3},
		"any CPU": {[]string{"agent", "--cpu=-1"}, []string{"--cpu=-1"}, -1},
		"nothing": {nil, nil, -1},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := &exec.Cmd{Path: "/bin/agent", Args: test.args}
			if err := g.wrap(cmd); err != nil {
				t.Fatal(err)
			}
			if cmd.Path != exe || len(cmd.Args) != 3 || cmd.Args[1] != GuestCommand {
				t.Fatalf("command %q", cmd.Args)
			}
			var got boot
			if err := json.Unmarshal([]byte(cmd.Args[2]), &got); err != nil {
				t.Fatal(err)
			}
			if want := (boot{guestPod: g, Program: "/bin/agent", Arguments: test.want, CPU: test.cpu}); !reflect.DeepEqual(got, want) {
				t.Errorf("boot is %+v, want %+v", got, want)
			}
		})
	}
	if err := g.wrap(&exec.Cmd{Path: "/bin/agent", Args: []string{"agent", "--cpu=x"}}); err == nil || !strings.Contains(err.Error(), "--cpu=x") {
		t.Errorf("error %v for a CPU that is no number", err)
	}
	if err := RunGuest(context.Background(), []string{"x"}, vm.Options{}); err == nil || !strings.Contains(err.Error(), "one argument") {
		t.Errorf("error %v for an argument that no lab passes", err)
	}
}
