// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"maps"
	"net/netip"
	"slices"

	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/rtnl"
)

// policyRules reports whether the kernel's firewall rules enforce a network policy.
func (p Path) policyRules() bool { return p.Lab.Policy != "" && p.Lab.Policy != lab.ViaEBPFTC }

// connections returns the least number of connections that the flow has opened.
func (c *sampleCheck) connections() uint64 {
	if c.measurement.Workload == load.TCPCRR {
		return c.measurement.Count
	}
	return 1
}

// rules returns the least increases of the counters of a network policy's rules. The packet that is denied is that of
// [Recorder.Start].
func (c *sampleCheck) rules() map[string]uint64 {
	if !c.policyRules() {
		return nil
	}
	toServer, toClient := c.packets()
	return map[string]uint64{"established": toServer + toClient, "allowed": c.connections(), "denied": 1}
}

// checkPolicy checks that a network policy has judged the connections, by its rules or by the eBPF programs, and that there is none
// where the path has none.
func (c *sampleCheck) checkPolicy() {
	if runs := c.evidence.ProgramRuns["tracked"]; c.Lab.Policy == "" && runs > 0 {
		c.add("a network policy has judged %d connections", runs)
	}
	least := c.rules()
	for _, other := range c.others {
		for name, packets := range other.rules {
			least[name] += packets
		}
	}
	for _, name := range slices.Sorted(maps.Keys(least)) {
		if got := c.evidence.Rules[name]; got < least[name] {
			c.add("rules of the policy counted %d packets that were %s, want at least %d", got, name, least[name])
		}
	}
}

// findSmall notes the ends of a path with BIG TCP whose devices do not take its packets. How large packets are depends on
// the speed of the machine, so their mean size proves nothing.
func (c *sampleCheck) findSmall(l *lab.Lab) error {
	if !c.Lab.BigTCP {
		return nil
	}
	for _, place := range []string{c.Client, c.Server} {
		ns, err := l.Namespace(place)
		if err != nil {
			return err
		}
		takes, err := rtnl.In(ns).TakesBigTCP(l.Device(place))
		if err != nil {
			return err
		}
		if !takes {
			c.small = append(c.small, place)
		}
	}
	return nil
}

func (c *sampleCheck) checkBigTCP() {
	for _, place := range c.small {
		c.add("the device of %s takes no packets of BIG TCP", place)
	}
}

// Ends are what is known of the ends of a path in a cluster.
type Ends struct {
	// Client are the addresses of the client's pod; empty if any address of its node will do.
	Client []netip.Addr
}

// checkEnds checks the addresses that both ends of a path in a cluster see. The client's peer is the server itself where a
// program translates the address in connect(), and the server's peer another address than the client's where one is masqueraded.
func (c *sampleCheck) checkEnds() {
	m := c.measurement
	if m.ClientPeer != c.Connect && m.ClientPeer != c.Listen {
		c.add("the client's peer is %s, want %s", m.ClientPeer, c.Connect)
	}
	if m.ServerLocal != c.Listen {
		c.add("the server's address is %s, want %s", m.ServerLocal, c.Listen)
	}
	if local := m.ClientLocal.Addr(); len(c.Ends.Client) > 0 && !slices.Contains(c.Ends.Client, local) {
		c.add("the client's address is %s, want one of %v", local, c.Ends.Client)
	}
}
