// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// The nftables table of a node in the family inet, and its sets.
const (
	tableName = "mustang-agent"
	kept4     = "kept4"
	kept6     = "kept6"
	nodesSet  = "nodes"
	far4      = "far4"
	far6      = "far6"
	open4     = "open4"
	open6     = "open6"
)

var notUnicast = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

// firewall is the content of the table.
//
// A pod can build a packet for the tunnel itself, with any source, and send it to a node. The other node cannot verify
// the origin of masqueraded packets, so these are dropped here. It can verify the origin of all others.
type firewall struct {
	// pods are masqueraded when they send to destinations outside of kept.
	pods, kept []netip.Prefix
	nodes      []netip.Addr // the only senders that may use the tunnel, at port; port 0: no tunnel
	port       uint16
	// With WireGuard, own has the ranges of this node's pods, far the ranges that other nodes claim, and open the
	// addresses of nodes in far.
	own, far, open []netip.Prefix
}

func newFirewall(p plan, self Node, others []Node, o Options) (f firewall) {
	if o.Masquerade {
		f.pods, f.kept = self.Ranges, slices.Concat(self.Ranges, o.Kept, notUnicast)
		for _, n := range others {
			f.kept = append(f.kept, n.Ranges...)
		}
	}
	if p.encrypted {
		f.own, f.far, f.open = self.Ranges, slices.Clone(p.closed), p.open
		for _, r := range p.routes {
			if !slices.Contains(f.own, r.dst) {
				f.far = append(f.far, r.dst)
			}
		}
	}
	if p.tunnel {
		f.port = o.Port
		for _, n := range p.peers {
			f.nodes = append(f.nodes, n.underlay)
		}
		slices.SortFunc(f.nodes, netip.Addr.Compare)
		f.nodes = slices.Compact(f.nodes)
	}
	return f
}

// apply writes the table of a firewall in one transaction. It does not change an equal table.
func (f firewall) apply(host *netns.Namespace) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err == nil {
		err = f.write(conn)
	}
	if err != nil {
		return fmt.Errorf("nftables table inet %s: %w", tableName, err)
	}
	return nil
}

func (f firewall) write(conn *nftables.Conn) error {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	there := slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName })
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	chains, sets := f.chains(table), f.sets(table)
	switch {
	case len(chains) == 0 && !there, there && len(chains) > 0 && same(conn, chains, sets):
		return nil
	case there:
		conn.DelTable(table)
	}
	if len(chains) > 0 {
		conn.AddTable(table)
	}
	for _, s := range sets {
		if err := conn.AddSet(s.Set, s.elements); err != nil {
			return err
		}
	}
	for _, c := range chains {
		conn.AddChain(c.Chain)
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: c.Chain, Exprs: r, UserData: c.comment(r)})
		}
	}
	return conn.Flush()
}

// set is a set with its elements, and chain a chain with its rules.
type (
	set struct {
		*nftables.Set
		elements []nftables.SetElement
	}
	chain struct {
		*nftables.Chain
		rules [][]expr.Any
	}
)

func (c chain) comment(rule []expr.Any) []byte {
	var content bytes.Buffer
	for _, e := range rule {
		fmt.Fprintf(&content, "%+v;", e)
	}
	return userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("%x", sha256.Sum256(content.Bytes()))[:16])
}

func same(conn *nftables.Conn, chains []chain, sets []set) bool {
	there, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	there = slices.DeleteFunc(there, func(c *nftables.Chain) bool { return c.Table.Name != tableName })
	if err != nil || len(there) != len(chains) {
		return false
	}
	for _, c := range chains {
		have, err := conn.GetRules(c.Table, c.Chain)
		if err != nil || len(have) != len(c.rules) {
			return false
		}
		for i, r := range have {
			if !bytes.Equal(r.UserData, c.comment(c.rules[i])) {
				return false
			}
		}
	}
	for _, s := range sets {
		if have, err := conn.GetSetElements(s.Set); err != nil || describe(have) != describe(s.elements) {
			return false
		}
	}
	return true
}

func describe(elements []nftables.SetElement) string {
	lines := make([]string, len(elements))
	for i, e := range elements {
		lines[i] = fmt.Sprintf("%x %v", e.Key, e.IntervalEnd)
	}
	slices.Sort(lines)
	return fmt.Sprint(lines)
}

func (f firewall) sets(table *nftables.Table) (sets []set) {
	if len(f.pods) > 0 {
		for name, is4 := range map[string]bool{kept4: true, kept6: false} {
			sets = append(sets, set{addressSet(table, name, is4, true), intervals(f.kept, is4)})
		}
	}
	if len(f.own)+len(f.far) > 0 {
		for name, of := range map[string][]netip.Prefix{far4: f.far, far6: f.far, open4: f.open, open6: f.open} {
			is4 := name == far4 || name == open4
			sets = append(sets, set{addressSet(table, name, is4, true), intervals(of, is4)})
		}
	}
	if f.port == 0 {
		return sets
	}
	nodes := set{Set: addressSet(table, nodesSet, f.nodes[0].Is4(), false)}
	for _, n := range f.nodes {
		nodes.elements = append(nodes.elements, nftables.SetElement{Key: n.AsSlice()})
	}
	return append(sets, nodes)
}

func addressSet(table *nftables.Table, name string, is4, interval bool) *nftables.Set {
	s := &nftables.Set{Table: table, Name: name, KeyType: nftables.TypeIP6Addr, Interval: interval}
	if is4 {
		s.KeyType = nftables.TypeIPAddr
	}
	return s
}

// intervals returns the addresses of prefixes of a family as elements: each interval's begin, and its end plus one.
func intervals(prefixes []netip.Prefix, is4 bool) (elements []nftables.SetElement) {
	var sorted []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == is4 {
			sorted = append(sorted, p)
		}
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var end netip.Addr // behind the last interval; invalid if that holds the last address
	for i, p := range sorted {
		if i > 0 && (!end.IsValid() || p.Addr().Less(end)) {
			continue // prefixes overlap only if one holds the other
		}
		if i > 0 && p.Addr() == end {
			elements = elements[:len(elements)-1]
		} else {
			elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
		if end = rtnl.LastAddress(p).Next(); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

func (f firewall) chains(table *nftables.Table) (chains []chain) {
	add := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *chain {
		chains = append(chains, chain{Chain: &nftables.Chain{Table: table, Name: name, Type: kind, Hooknum: hook,
			Priority: priority}})
		return &chains[len(chains)-1]
	}
	if f.port != 0 && len(f.pods) > 0 {
		c := add("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
		for _, p := range f.pods {
			c.rules = append(c.rules, slices.Concat(leaving(p), f.toPort(), verdict(&expr.Verdict{Kind: expr.VerdictDrop})))
		}
	}
	if f.port != 0 {
		c := add("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
		ofNetwork := []expr.Any{ // RFC 7348, section 5
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 8 + 4, Len: 3},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint32(nil, networkID)[1:]},
		}
		c.rules = [][]expr.Any{slices.Concat(family(f.nodes[0]), f.toPort(), ofNetwork, source(f.nodes[0]),
			notIn(nodesSet), verdict(&expr.Verdict{Kind: expr.VerdictDrop}))}
	}
	if len(f.pods) > 0 {
		c := add("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		for _, p := range f.pods {
			c.rules = append(c.rules, slices.Concat(leaving(p), verdict(&expr.Masq{FullyRandom: true})))
		}
	}
	if len(f.own)+len(f.far) > 0 {
		plain := add("plain", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
		plain.rules = f.plain()
		sealed := add("sealed", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, nftables.ChainPriorityFilter)
		sealed.rules = f.sealed()
		into := add("encrypted", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		into.rules = f.foreign()
	}
	return chains
}

func leaving(pods netip.Prefix) []expr.Any {
	kept := kept4
	if pods.Addr().Is6() {
		kept = kept6
	}
	return slices.Concat(family(pods.Addr()), source(pods.Addr()), within(expr.CmpOpEq, pods), destination(pods.Addr()),
		notIn(kept))
}

// within compares an address with a prefix.
func within(op expr.CmpOp, prefix netip.Prefix) []expr.Any {
	size := len(prefix.Addr().AsSlice())
	mask := make([]byte, size)
	for i := range prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(size), Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: op, Register: 1, Data: prefix.Addr().AsSlice()},
	}
}

// Masquerade replaces a table of the family inet: packets that leave a prefix get the host's address as source.
func Masquerade(host *netns.Namespace, name string, prefixes []netip.Prefix) error {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	if err == nil {
		table := &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
		chain := &nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource}
		conn.AddTable(table)
		conn.DelTable(table)
		conn.AddTable(table)
		conn.AddChain(chain)
		for _, p := range prefixes {
			p = p.Masked()
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(family(p.Addr()), source(p.Addr()),
				within(expr.CmpOpEq, p), destination(p.Addr()), within(expr.CmpOpNeq, p), verdict(&expr.Masq{}))})
		}
		err = conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("masquerade %v in %q: %w", prefixes, host.Name(), err)
	}
	return nil
}

func family(a netip.Addr) []expr.Any {
	is := byte(unix.NFPROTO_IPV4)
	if a.Is6() {
		is = unix.NFPROTO_IPV6
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1,
		Data: []byte{is}}}
}

// source and destination load an address of packets of an address's family (RFC 791, RFC 8200).
func source(of netip.Addr) []expr.Any      { return load(of, 12, 8) }
func destination(of netip.Addr) []expr.Any { return load(of, 16, 24) }

func load(of netip.Addr, offset, offset6 uint32) []expr.Any {
	if of.Is6() {
		offset = offset6
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset,
		Len: uint32(len(of.AsSlice()))}}
}

func notIn(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: set, Invert: true}}
}

// toPort matches UDP packets to the tunnel's port.
func (f firewall) toPort() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1,
			Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, f.port)},
	}
}

func verdict(e expr.Any) []expr.Any { return []expr.Any{&expr.Counter{}, e} }

// HookChain is a chain of rules at a netfilter hook.
type HookChain struct {
	Hook string // "prerouting", "input", "forward", "output" or "postrouting"
	// Family is "ip", "ip6" or "inet".
	Family, Table, Chain string
	Drops                bool // drops what no rule accepts
}

var familyNames = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// HookChains returns the chains of nftables, and of iptables over nftables, at the IP hooks of a host.
func HookChains(host *netns.Namespace) (out []HookChain, err error) {
	conn, err := nftables.New(nftables.WithNetNSFd(host.FD()))
	var chains []*nftables.Chain
	if err == nil {
		chains, err = conn.ListChains()
	}
	hooks := []string{"prerouting", "input", "forward", "output", "postrouting"}
	for _, c := range chains {
		family := familyNames[c.Table.Family]
		if family == "" || c.Hooknum == nil || int(*c.Hooknum) >= len(hooks) {
			continue
		}
		drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		out = append(out, HookChain{hooks[*c.Hooknum], family, c.Table.Name, c.Name, drops})
	}
	return out, err
}
