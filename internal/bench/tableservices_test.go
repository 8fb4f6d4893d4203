// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"testing"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPortComesAgain changes a service whose client has two ports. conntrack takes their next connections to the
// previous backend, and to the new one once their entries are gone.
func TestPortComesAgain(t *testing.T) {
	testkit.RequireTool(t, "iptables")
	o := lab.Options{Topology: lab.TopologyPodLinks, Link: "veth", Datapath: lab.DatapathKernel, Via: lab.ViaIPTables,
		Services: 2}
	o.Name = fmt.Sprintf("ports-%d", os.Getpid())
	l, err := lab.Store{Dir: t.TempDir() + "/state"}.Up(t.Context(), o)
	testkit.Succeed(t, err)
	t.Cleanup(func() {
		err := l.Close()
		testkit.Check(t, err == nil, "%v", err)
	})
	pod, err := l.Namespace(lab.PodB)
	testkit.Succeed(t, err)
	testkit.Succeed(t, rtnl.In(pod).SetSysctl("net/ipv4/ip_local_port_range", "40000 40001"))
	c, err := connect(l, 0, evidence.Path{Client: lab.PodB, Server: lab.PodA, Lab: o})
	testkit.Succeed(t, err)
	defer c.close()
	services := l.AllServices(lab.OtherBackends)
	i := len(services) - 1
	testkit.Require(t, isOther(services[i]), "%v is not among the other services", services[i])
	reach := func(n int, of service.Service, want bool) {
		t.Helper()
		err := c.on(func() error {
			shows := false
			for range n {
				_, shown, err := c.reach(of)
				if err != nil {
					return err
				}
				shows = shows || shown
			}
			testkit.Check(t, shows == want, "a new backend is reached: %t, want %t", shows, want)
			return nil
		})
		testkit.Check(t, err == nil, "%v", err)
	}
	old := services[i]
	reach(8, old, true) // both ports
	other := old
	other.Backends = service.Backends(newBackend())
	services[i] = other
	testkit.Succeed(t, l.ChangeService(t.Context(), services, i))
	reach(8, old, false)
	reach(8, other, false)
	testkit.Succeed(t, c.forget())
	reach(1, other, true)
}
