// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// excepting returns a policy with blocks of all addresses, of which each leaves out another.
func excepting(name string, from, n int) Policy {
	p := Policy{Tier: Namespaced, Namespace: "n", Name: name, IsolatesIngress: true, Ingress: make([]Rule, 1)}
	for i := from; i < from+n; i++ {
		out := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, Peer{Block: &Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Except: []netip.Prefix{out}}})
	}
	return p
}

// TestOverlaps refuses blocks that overlap too much, of one policy and of several, unless they select no pod of this node or were there before.
func TestOverlaps(t *testing.T) {
	pod := Pod{Namespace: "n", Name: "a", Node: "node", Labels: map[string]string{"app": "a"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	elsewhere := excepting("elsewhere", 0, 4000)
	elsewhere.Subject.Pods.Labels = map[string]string{"app": "b"}
	for what, c := range map[string]struct {
		policies []Policy
		refused  string
	}{
		"one":       {[]Policy{excepting("q", 0, 4000), excepting("small", 0, 2)}, "NetworkPolicy n/q"},
		"two":       {[]Policy{excepting("q", 0, 300), excepting("r", 300, 310)}, "NetworkPolicy n/r"},
		"the same":  {[]Policy{excepting("q", 0, 400), excepting("r", 0, 400)}, ""},
		"elsewhere": {[]Policy{excepting("q", 0, 400), elsewhere}, ""},
	} {
		s := Snapshot{Node: "node", Policies: c.policies, Pods: []Pod{pod}}
		compiler := NewCompiler(Rows{})
		if _, err := compiler.Change(Snapshot{Node: "node", Policies: []Policy{excepting("before", 1000, 500)}, Pods: []Pod{pod}}); err != nil {
			t.Fatal(err)
		}
		_, err := compiler.Change(s)
		var over *LimitError
		if refused := errors.As(err, &over); refused != (c.refused != "") || refused && (over.Largest.String() != c.refused || over.Number <= MostOverlaps) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestResume begins with policies that overlap too much and are in force: they can be replaced by others.
func TestResume(t *testing.T) {
	pod := Pod{Namespace: "n", Name: "a", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	old, c := []Policy{excepting("q", 0, 600)}, NewCompiler(Rows{})
	if err := c.Resume(Snapshot{Node: "node", Policies: old, Pods: []Pod{pod}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Change(Snapshot{Node: "node", Policies: []Policy{excepting("q", 0, 500)}, Previous: old, Pods: []Pod{pod}}); err != nil {
		t.Error(err)
	}
}

// TestCoversGo leaves nothing of blocks and identities that have gone.
func TestCoversGo(t *testing.T) {
	c := NewCompiler(Rows{})
	for i := range 20 {
		s := Snapshot{Node: "node", Policies: []Policy{excepting("q", i, 5)}}
		for j := range 10 {
			at := netip.AddrFrom4([4]byte{203, 0, 0, byte(i + j)})
			s.Pods = append(s.Pods, Pod{Namespace: "n", Name: fmt.Sprint("p", j), Node: "node", Labels: map[string]string{"app": fmt.Sprint(j)}, Addresses: []netip.Addr{at}})
		}
		if _, err := c.Change(s); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		if len(c.blocks.covers) != 6 { // all blocks, and all but one
			t.Errorf("change %d: there are %d covers", i, len(c.blocks.covers))
		}
	}
	_, err := c.Change(Snapshot{})
	if c.Settle(); err != nil || len(c.blocks.covers)+len(c.blocks.byKey)+len(c.identities)+len(c.Rows().Numbers) > 0 {
		t.Errorf("there are %v: %v", c.blocks, err)
	}
}
