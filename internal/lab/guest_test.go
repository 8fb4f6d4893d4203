// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/testkit"
	"mustang/internal/traffic"
	"mustang/internal/vm"
)

// guestProgram builds mustang as guests need it.
func guestProgram(t *testing.T) string {
	t.Helper()
	testkit.NotInGuest(t)
	testkit.RequireRoot(t)
	testkit.RequireTool(t, "qemu-system-x86_64")
	path := filepath.Join(t.TempDir(), "mustang")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "mustang/cmd/mustang")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return path
}

// startAgent starts an agent at a place, which ends with the test.
func startAgent(t *testing.T, l *lab.Lab, program, place string, cpu int) *traffic.Agent {
	t.Helper()
	begin := time.Now()
	a, err := traffic.StartAgent(traffic.AgentOptions{
		Exe: program, CPU: cpu, Timeout: time.Minute, Start: func(cmd *exec.Cmd) error { return l.Start(place, cmd) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	t.Logf("agent at %s is ready after %v", place, time.Since(begin))
	return a
}

// TestGuests sends packets between two guests and from one to its host, by each
// link that guests have.
func TestGuests(t *testing.T) {
	program := guestProgram(t)
	s := store(t)
	for _, link := range []string{"tap", "ovs-tap"} {
		t.Run(link, func(t *testing.T) {
			if link == "ovs-tap" {
				testkit.RequireTool(t, "ovs-vswitchd")
			}
			l := up(t, s, options(lab.Options{Link: link, Guests: true}))
			if a := l.Acceleration(); a != vm.KVM && a != vm.TCG {
				t.Errorf("acceleration %q", a)
			}
			t.Logf("acceleration %s", l.Acceleration())
			ready := make(chan *traffic.Agent)
			go func() {
				defer close(ready)
				ready <- startAgent(t, l, program, lab.PodB, 1)
			}()
			server := startAgent(t, l, program, lab.PodA, 0)
			client := <-ready
			if client == nil {
				t.FailNow()
			}
			host := startAgent(t, l, program, lab.Host, 0)
			for _, test := range []struct {
				name, workload string
				server         *traffic.Agent
				at             netip.Addr
			}{
				{"TCP", traffic.TCPStream, server, lab.PodAIPs[0]},
				{"TCP IPv6", traffic.TCPStream, server, lab.PodAIPs[1]},
				{"UDP", traffic.UDPStream, server, lab.PodAIPs[0]},
				{"round trips", traffic.TCPRR, server, lab.PodAIPs[0]},
				{"TCP to the host", traffic.TCPStream, host, lab.Gateways[0].Addr()},
			} {
				t.Run(test.name, func(t *testing.T) {
					listen := netip.AddrPortFrom(test.at, 0)
					if err := test.server.Listen(t.Context(), listen); err != nil {
						t.Fatal(err)
					}
					spec := traffic.Spec{Workload: test.workload, Target: test.server.Address(), Duration: time.Second / 2, Stall: 10 * time.Second}
					if test.workload == traffic.UDPStream {
						spec.Rate = 5e6
					}
					m, err := client.Run(t.Context(), spec)
					if err != nil {
						t.Fatal(err)
					}
					if m.Count == 0 || m.ServerLocal.Addr() != test.at || m.ServerPeer.Addr() != m.ClientLocal.Addr() {
						t.Errorf("measurement %+v", m)
					}
					t.Logf("%.4g %s, lost %.3g", m.Rate, m.Unit, m.Lost())
				})
			}
			if err := l.Start(lab.PodA, exec.Command(program)); err == nil {
				t.Error("a second command in a guest is no error")
			}
		})
	}
}

// TestGuestOptions wants no lab of what does not go together.
func TestGuestOptions(t *testing.T) {
	s := store(t)
	for name, o := range map[string]lab.Options{
		"link":     {Link: "veth", Guests: true},
		"no guest": {Link: "ovs-tap"},
		"datapath": {Link: "tap", Guests: true, Datapath: lab.DatapathEBPF},
		"service":  {Link: "tap", Guests: true, Via: lab.ViaIPTables},
		"offload":  {Link: "tap", Guests: true, Offload: true},
	} {
		_, err := s.Up(context.Background(), options(o))
		if wrong := (*lab.OptionError)(nil); !errors.As(err, &wrong) {
			t.Errorf("%s: error %v, want an OptionError", name, err)
		}
	}
}
