// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"mustang/internal/datapath"
	"mustang/internal/testkit"
)

// publishing is a network one of whose pods has the host's port, over TCP.
func publishing(name, mode string, port int) []byte {
	return network(name, mode, fmt.Sprintf(`,"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":80}]}`, port))
}

// uplinks counts those that there are.
func (f *fixture) uplinks(want int) {
	f.t.Helper()
	f.tables(func(d *datapath.Datapath) error {
		all, err := d.Uplinks()
		if err == nil && len(all) != want {
			f.t.Errorf("uplinks are %v, want %d", all, want)
		}
		return err
	})
}

// TestLastPort takes pods with ports away, of two networks with one parent, whose names
// for it differ. The other's connection goes on, and the last takes the uplink's programs
// with it, by DEL or by GC.
func TestLastPort(t *testing.T) {
	for _, mode := range crashModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.plugin.Cgroup = testkit.Cgroup(t)
			command(t, f.host, "ip link property add dev uplink altname other")
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
			f.must(f.del(f.added("a", network("net", mode, "")))) // has no ports
			f.must(f.gc(one))
			f.uplinks(1)
			speak()
			f.must(f.gc(two))
			f.uplinks(0)
			f.same(before, "GC")
		})
	}
}

// conversation connects from outside, and returns what sends a line and reads it back.
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
		_, err := fmt.Fprintln(conn, "hello")
		f.must(err)
		for { // the first line tells who has called
			line, err := answers.ReadString('\n')
			f.must(err)
			if strings.HasSuffix(line, "hello\n") {
				return
			}
		}
	}
}

// TestLastPortLost has all that tells of ports be gone but the datapath: the next pod
// whose ports go takes the uplink with it.
func TestLastPortLost(t *testing.T) {
	f := newFixture(t)
	f.plugin.Cgroup = testkit.Cgroup(t)
	p := f.added("a", publishing("net", "veth", 8080))
	f.must(os.RemoveAll(f.plugin.RunDir))
	f.uplinks(1)
	f.must(f.del(p))
	f.uplinks(0)
}

// TestPortAtOnce has pods of two networks want the same port at once: one gets it.
func TestPortAtOnce(t *testing.T) {
	f := newFixture(t)
	f.plugin.Cgroup = testkit.Cgroup(t)
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
				f.oneLine(errs[i], ":8080/tcp is taken, it leads to")
				continue
			}
			won++
			f.must(f.check(p))
			testkit.Echo(t, p.Namespace, "tcp", netip.AddrPortFrom(p.ips()[0], 80).String())
			f.conversation(netip.AddrPortFrom(hostAddresses[0].Addr(), 8080))()
		}
		if won != 1 {
			t.Errorf("%d pods got the port: %v", won, errs)
		}
		atOnce(t, pods, f.del)
		f.same(before, "DEL")
	}
}
