// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/datapath"
	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// dialVariable turns the test binary into a client: it has the protocol and the address.
const dialVariable = "MUSTANG_CNI_DIAL"

// dial sends a line to an echo server and reads it back.
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

// dialFrom runs a client in a namespace, and in the control group whose sockets are translated.
func (f *fixture) dialFrom(ns *netns.Namespace, network string, to netip.AddrPort) error {
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
				return // answers to hosts beyond the uplink are not translated there: docs/datapath.md
			}
			f := newSocketFixture(t)
			f.must(f.del(f.added("first", everything(mode.Name()))))
			before := f.left()
			ports := `,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80},{"hostPort":8053,` +
				`"containerPort":53,"protocol":"udp"}]}`
			p := f.added("a", network("net", mode.Name(), ports))
			for _, ip := range p.ips() {
				testkit.Echo(t, p.Namespace, "tcp", netip.AddrPortFrom(ip, 80).String())
				testkit.Echo(t, p.Namespace, "udp", netip.AddrPortFrom(ip, 53).String())
			}
			for i, host := range hostAddresses {
				loopback := []string{"127.0.0.1", "::1"}[i]
				for network, port := range map[string]uint16{"tcp": 8080, "udp": 8053} {
					_, err := testkit.RoundTrip(t, f.outside, network, netip.AddrPortFrom(host.Addr(), port).String(), []byte("x"))
					testkit.Check(t, err == nil, "from outside by %s: %v", network, err)
					for _, addr := range []netip.Addr{host.Addr(), netip.MustParseAddr(loopback)} {
						err := f.dialFrom(f.host, network, netip.AddrPortFrom(addr, port))
						testkit.Check(t, err == nil, "from the host by %s to %s: %v", network, addr, err)
					}
				}
			}
			f.must(f.check(p))
			other := f.pod("b", network("net", mode.Name(), ports))
			err := f.add(other)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), "8080"), "a second pod with the same ports: %v", err)
			f.must(f.del(p))
			f.same(before, "DEL")
			f.must(f.add(other))
			f.must(f.del(other))
		})
	}
}

// TestForeignHostIP refuses a port mapping at an address that the host does not have: the pod would get the connections
// of the host and of other pods to it. A host port is at the one address that the mapping names.
func TestForeignHostIP(t *testing.T) {
	f := newSocketFixture(t)
	at := func(ip string) []byte {
		return network("net", "veth", `,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"hostIP":"`+ip+
			`"}]}`)
	}
	own := f.added("own", at(hostAddresses[0].Addr().String()))
	before := f.left()
	for _, ip := range []string{"1.2.3.4", "10.96.0.1", outsideAddresses[0].Addr().String(), own.ips()[0].String(),
		"2001:db8::9", "fe80::1"} {
		p := f.pod("a", at(ip))
		err := f.add(p)
		f.oneLine(err, "portMappings[0].hostIP: "+ip+" is not a routable host address")
		testkit.Check(t, Coded(err).Code == types.ErrInvalidNetworkConfig, "%s: code %d", ip, Coded(err).Code)
		f.same(before, ip)
		f.must(f.del(p))
	}
	testkit.Echo(t, own.Namespace, "tcp", netip.AddrPortFrom(own.ips()[0], 80).String())
	f.must(f.dialFrom(f.host, "tcp", netip.AddrPortFrom(hostAddresses[0].Addr(), 8080)))
	err := f.dialFrom(f.host, "tcp", netip.MustParseAddrPort("127.0.0.1:8080"))
	testkit.Check(t, err != nil, "the host port is at another address, too")
}

// TestPortOfNodePort refuses a host port at an address of the host that has the port as a node port, as all of its
// addresses.
func TestPortOfNodePort(t *testing.T) {
	f := newSocketFixture(t)
	first := f.added("first", publishing("net", "veth", 8080))
	f.must(f.del(first))
	for i, all := range []string{"0.0.0.0:31999", "[::]:31999"} {
		nodePort := service.Service{Frontend: netip.MustParseAddrPort(all), Protocol: service.TCP, NodePort: true}
		f.tables(func(d *datapath.Datapath) error {
			_, _, err := d.Services().Put(t.Context(), service.Agent, nodePort)
			return err
		})
		before := f.left()
		p := f.pod("a", network("net", "veth",
			`,"runtimeConfig":{"portMappings":[{"hostPort":31999,"containerPort":80,"hostIP":"`+
				hostAddresses[i].Addr().String()+`"}]}`))
		f.oneLine(f.add(p), all+"/tcp is in use by")
		f.same(before, "ADD")
		f.must(f.del(p))
	}
}

// TestPodAtHostAddress gives the host an address that a pod would get. ADD refuses it while the host has it.
func TestPodAtHostAddress(t *testing.T) {
	f := newFixture(t)
	for _, services := range []string{"socket", "off"} {
		p := f.pod("a", network("net", "veth", `,"services":"`+services+`","runtimeConfig":{"ips":["10.113.0.9"]}`))
		testkit.Command(t, f.host, "ip addr replace 10.113.0.9/32 dev uplink")
		f.oneLine(f.add(p), "10.113.0.9 is an address of the host")
		testkit.Command(t, f.host, "ip addr del 10.113.0.9/32 dev uplink")
		f.must(f.add(p))
		f.must(f.del(p))
	}
}

// publishing is a network with a TCP host port for one pod.
func publishing(name, mode string, port int) []byte {
	return network(name, mode, fmt.Sprintf(`,"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":80}]}`, port))
}

func (f *fixture) uplinks(want int) {
	f.t.Helper()
	f.tables(func(d *datapath.Datapath) error {
		all, err := d.Uplinks().List(f.t.Context())
		testkit.Check(f.t, err != nil || len(all) == want, "uplinks are %v, want %d", all, want)
		return err
	})
}

// TestLastPort deletes pods with host ports, of two networks with one parent under two
// names. Connections of the other pod continue, and the last DEL or GC detaches the uplink.
func TestLastPort(t *testing.T) {
	eachName(t, crashModes, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		testkit.Command(t, f.host, "ip link property add dev uplink altname other")
		one := publishing("net", mode, 8080)
		two := []byte(strings.Replace(string(publishing("two", "veth", 8081)), `"parent":"uplink"`, `"parent":"other"`, 1))
		for _, config := range [][]byte{one, two} {
			f.must(f.del(f.added("first", config)))
		}
		f.uplinks(0)
		before := f.left()
		a, b := f.added("a", one), f.added("b", two)
		f.uplinks(1)
		testkit.Echo(t, b.Namespace, "tcp", netip.AddrPortFrom(b.ips()[0], 80).String())
		speak := f.conversation(netip.AddrPortFrom(hostAddresses[0].Addr(), 8081))
		speak()
		f.must(f.del(a))
		speak()
		f.uplinks(1)
		f.must(f.check(b))
		f.must(f.del(f.added("a", network("net", mode, "")))) // without ports
		f.must(f.gc(one))
		f.uplinks(1)
		speak()
		f.must(f.gc(two))
		f.uplinks(0)
		f.same(before, "GC")
	})
}

// conversation connects from outside, and returns a function that sends a line and reads it back.
func (f *fixture) conversation(to netip.AddrPort) func() {
	f.t.Helper()
	var conn net.Conn
	f.must(f.outside.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", to.String(), 5*time.Second)
		return err
	}))
	f.t.Cleanup(func() { _ = conn.Close() })
	answers := bufio.NewReader(conn)
	return func() {
		f.t.Helper()
		f.must(conn.SetDeadline(time.Now().Add(5 * time.Second)))
		testkit.Must(fmt.Fprintln(conn, "hello"))(f.t)
		for { // the first line tells who has called
			line := testkit.Must(answers.ReadString('\n'))(f.t)
			if strings.HasSuffix(line, "hello\n") {
				return
			}
		}
	}
}

// TestPortAtOnce requests the same port for pods of two networks at once: one gets it.
func TestPortAtOnce(t *testing.T) {
	f := newSocketFixture(t)
	f.must(f.del(f.added("first", publishing("net", "veth", 8080))))
	f.must(f.del(f.added("first", publishing("two", "veth", 8080))))
	before := f.left()
	for range 3 {
		var pods []*pod
		for i := range 6 {
			pods = append(pods, f.pod(fmt.Sprint("p", i), publishing([]string{"net", "two"}[i%2], "veth", 8080)))
		}
		var wait sync.WaitGroup
		errs := make([]error, len(pods))
		for i, p := range pods {
			wait.Go(func() { errs[i] = f.add(p) })
		}
		wait.Wait()
		won := 0
		for i, p := range pods {
			if errs[i] != nil {
				f.oneLine(errs[i], ":8080/tcp is in use by")
				continue
			}
			won++
			f.must(f.check(p))
			testkit.Echo(t, p.Namespace, "tcp", netip.AddrPortFrom(p.ips()[0], 80).String())
			f.conversation(netip.AddrPortFrom(hostAddresses[0].Addr(), 8080))()
		}
		testkit.Check(t, won == 1, "%d pods got the port: %v", won, errs)
		atOnce(t, pods, f.del)
		f.same(before, "DEL")
	}
}

// TestPortOfProcess refuses a host port at which a process of the host listens, as Docker and Podman do. A socket at
// another address, another protocol's, or one with a peer takes nothing that comes to the port.
func TestPortOfProcess(t *testing.T) {
	f := newSocketFixture(t)
	own := hostAddresses[0].Addr().String()
	at := func(protocol, hostIP string) []byte {
		return network("net", "veth",
			fmt.Sprintf(`,"runtimeConfig":{"portMappings":[{"hostPort":5302,"containerPort":80,"protocol":%q,"hostIP":%q}]}`,
				protocol, hostIP))
	}
	f.must(f.del(f.added("first", at("tcp", own))))
	before := f.left()
	for _, row := range []struct {
		network, listens, protocol, hostIP string
		refused                            string // empty: it is not
	}{
		{"tcp4", "0.0.0.0:5302", "tcp", "0.0.0.0", "5302/tcp is in use by a process of the host, at 0.0.0.0:5302"},
		{"tcp", "[::]:5302", "tcp", own, own + ":5302/tcp is in use by a process of the host, at [::]:5302"},
		{"tcp6", "[::]:5302", "tcp", "::", "at [::]:5302"},
		{"tcp6", "[::]:5302", "tcp", own, ""}, // IPV6_V6ONLY
		{"tcp", own + ":5302", "tcp", "0.0.0.0", "at " + own + ":5302"},
		{"udp4", "0.0.0.0:5302", "udp", own, "at 0.0.0.0:5302"},
		{"udp", "[2001:db8::1]:5302", "udp", "::", "at [2001:db8::1]:5302"},
		{"tcp", own + ":5302", "udp", "0.0.0.0", ""},
		{"udp", own + ":5302", "tcp", "0.0.0.0", ""},
		{"tcp", own + ":5303", "tcp", "0.0.0.0", ""},
		{"tcp", "127.0.0.1:5302", "tcp", own, ""},
		{"udp", "127.0.0.1:5302", "udp", own, ""},
	} {
		var socket io.Closer
		f.must(f.host.Do(func() (err error) {
			if strings.HasPrefix(row.network, "udp") {
				socket, err = net.ListenPacket(row.network, row.listens)
			} else {
				socket, err = net.Listen(row.network, row.listens)
			}
			return err
		}))
		p := f.pod("a", at(row.protocol, row.hostIP))
		if err := f.add(p); row.refused != "" {
			f.oneLine(err, row.refused)
			f.same(before, row.refused)
		} else if err != nil {
			t.Errorf("%s at %s beside %s at %s: %v", row.protocol, row.hostIP, row.network, row.listens, err)
		}
		f.must(socket.Close())
		f.must(f.del(p))
	}
	// Sockets with a peer.
	testkit.Echo(t, f.outside, "tcp", outsideAddresses[0].Addr().String()+":80")
	for _, protocol := range []string{"tcp", "udp"} {
		var conn net.Conn
		f.must(f.host.Do(func() (err error) {
			var local net.Addr = &net.TCPAddr{Port: 5302}
			if protocol == "udp" {
				local = &net.UDPAddr{Port: 5302}
			}
			conn, err = (&net.Dialer{LocalAddr: local}).DialContext(t.Context(), protocol, outsideAddresses[0].Addr().String()+
				":80")
			return err
		}))
		p := f.added("a", at(protocol, "0.0.0.0"))
		f.must(conn.Close())
		f.must(f.del(p))
	}
}
