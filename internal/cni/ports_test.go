// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"mustang/internal/nl"
	"mustang/internal/testkit"
)

// dialVariable makes the test binary a client: it says "tcp" or "udp", and where to.
const dialVariable = "MUSTANG_CNI_DIAL"

// dial sends a line to an echo server, and reads it back.
func dial(text string) error {
	network, addr, _ := strings.Cut(text, " ")
	conn, err := net.DialTimeout(network, addr, 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return err
	}
	if network == "udp" {
		_, err := conn.Read(make([]byte, 100))
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.HasSuffix(string(answer), "hello\n") {
		err = fmt.Errorf("the answer is %q", answer)
	}
	return err
}

// dialFrom is such a client in a namespace and in the control group whose sockets
// are translated.
func (f *fixture) dialFrom(ns *nl.Namespace, network string, to netip.AddrPort) error {
	group, err := os.Open(f.plugin.Cgroup)
	if err != nil {
		return err
	}
	defer group.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), dialVariable+"="+network+" "+to.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	var output bytes.Buffer
	cmd.Stderr = &output
	if err := ns.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return errors.Join(err, errors.New(output.String()))
	}
	return nil
}

// TestPorts reaches a pod by the host's port: from outside, and from the host by
// its own address and by loopback; and by no other pod's port.
func TestPorts(t *testing.T) {
	for _, mode := range modes() {
		t.Run(mode.Name(), func(t *testing.T) {
			t.Parallel()
			testkit.RequireMode(t, mode.Probe())
			if mode.Name() == "ipvlan-l3s" {
				return // answers to what is beyond the uplink are not translated there: docs/architecture.md
			}
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			f.must(f.del(f.added("first", everything(mode.Name()))))
			before := f.left()
			ports := `,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80},{"hostPort":8053,"containerPort":53,"protocol":"udp"}]}`
			p := f.added("a", network("net", mode.Name(), ports))
			for _, ip := range p.ips() {
				testkit.Echo(t, p.Namespace, "tcp", netip.AddrPortFrom(ip, 80).String())
				testkit.Echo(t, p.Namespace, "udp", netip.AddrPortFrom(ip, 53).String())
			}
			for i, host := range hostAddresses {
				loopback := []string{"127.0.0.1", "::1"}[i]
				for network, port := range map[string]uint16{"tcp": 8080, "udp": 8053} {
					if _, err := testkit.RoundTrip(t, f.outside, network, netip.AddrPortFrom(host.Addr(), port).String(), []byte("x")); err != nil {
						t.Errorf("from outside by %s: %v", network, err)
					}
					for _, addr := range []netip.Addr{host.Addr(), netip.MustParseAddr(loopback)} {
						if err := f.dialFrom(f.host, network, netip.AddrPortFrom(addr, port)); err != nil {
							t.Errorf("from the host by %s to %s: %v", network, addr, err)
						}
					}
				}
			}
			f.must(f.check(p))
			other := f.pod("b", network("net", mode.Name(), ports))
			if err := f.add(other); err == nil || !strings.Contains(err.Error(), "8080") {
				t.Errorf("a second pod with the same ports: %v", err)
			}
			f.must(f.del(p))
			f.same(before, "DEL")
			f.must(f.add(other))
			f.must(f.del(other))
		})
	}
}
