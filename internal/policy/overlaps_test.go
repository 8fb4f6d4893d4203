// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"net/netip"
	"testing"

	"mustang/internal/testkit"
)

// excepting returns a policy with blocks of all addresses, each with another exception.
func excepting(name string, from, n int) Policy {
	p := Policy{Tier: Namespaced, Namespace: "n", Name: name, IsolatesIngress: true, Ingress: make([]Rule, 1)}
	for i := from; i < from+n; i++ {
		out := netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		p.Ingress[0].Peers = append(p.Ingress[0].Peers, Peer{Block: &Block{CIDR: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			Except: []netip.Prefix{out}}})
	}
	return p
}

// TestOverlaps refuses blocks that overlap too much, of one policy and of several, unless they select no pod of this
// node.
func TestOverlaps(t *testing.T) {
	pod := Pod{Namespace: "n", Name: "a", Node: "node", Labels: map[string]string{"app": "a"},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
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
		_, err := Compile(s, Rows{})
		var over *LimitError
		if refused := errors.As(err, &over); refused != (c.refused != "") || refused && (over.Largest.String() != c.refused ||
			over.Number <= MostOverlaps) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestReplaceTooMuch begins with policies that overlap too much and are in force: they can be replaced by others.
func TestReplaceTooMuch(t *testing.T) {
	pod := Pod{Namespace: "n", Name: "a", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	old := Snapshot{Node: "node", Policies: []Policy{excepting("q", 0, 600)}, Pods: []Pod{pod}}
	now := Snapshot{Node: "node", Policies: []Policy{excepting("q", 0, 500)}, Previous: &old, Pods: []Pod{pod}}
	_, err := Steps(now, Rows{}, Limits{Work: MostWork})
	testkit.Check(t, err == nil, "%v", err)
}
