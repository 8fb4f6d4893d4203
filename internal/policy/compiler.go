// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"net/netip"
)

type compiler struct {
	rows       Rows
	have       map[Digest]uint32 // numbers in force
	taken      map[uint32]bool   // the numbers in have
	last       uint32            // offset of the last new number, see number
	tableSizes map[uint32]int    // rows of tables of ports

	node       string
	namespaces map[string]map[string]string
	asked
	blocks     blocks
	hosts      map[netip.Prefix]*content // of whole addresses
	contents   map[Digest]*content
	labelled   labelled[*content]
	identities map[address]*identity
	digests    digests
	entries    map[Digest]*entry
	sets       map[Digest]*ruleSet
	work       int
	limit      int    // 0: none
	meter      *meter // nil: rows of namespaces are not counted
}

type pod struct {
	*Pod
	namespace map[string]string // its labels
	by        []*entry          // in their order
}

type entry struct {
	*Policy
	id       Digest
	prepared [2]*prepared // by direction; nil: it does not apply
	before   bool         // it is in force already
}

// digests are the digests of policies that several compilations share.
type digests map[*Policy]Digest

func (d digests) of(p *Policy) Digest {
	id, ok := d[p]
	if !ok {
		id = p.Digest()
		d[p] = id
	}
	return id
}

// compare compares policies by their order. Policies of several sources with one name have a stable order.
func (e *entry) compare(f *entry) int {
	return cmp.Or(cmp.Compare(e.Tier, f.Tier), cmp.Compare(e.Priority, f.Priority),
		cmp.Compare(e.Namespace, f.Namespace), cmp.Compare(e.Name, f.Name), bytes.Compare(e.id[:], f.id[:]))
}

type kind uint8

const (
	aPod kind = iota
	aNamespace
	aNode
)

// label is a label of pods, of their namespaces, or of nodes. Without a key it stands for all pods, or all nodes.
type label struct {
	of         kind
	in         string // the namespace whose pods a rule means, if it names one
	key, value string
}

type labelled[T any] map[label][]T

type asked struct {
	// values stores the namespaces of the rules that require a value. ClusterNetworkPolicies have namespace "".
	values map[label]map[string]bool
	keys   map[label]bool // that rules require to exist or not; without a value
	ports  map[string]bool
}

// content holds the fields of a pod or node that rules use, without its address blocks. Pods and nodes can share it.
type content struct {
	kind              kind
	namespace, labels map[string]string
	ports             []NamedPort
	ownNode           bool
	id                Digest
	by                []label // that rules name
	identities        []*identity
	rules             []int32 // of the set that is filled
}

type address struct {
	*content        // nil: of neither pod nor node
	in       *cover // nil: it is in no block
}

// identity is all that policies can distinguish of a peer. Addresses that no policy distinguishes share one.
type identity struct {
	address
	number uint32
}

type prepared struct {
	clauses []*clause
	deny    uint32 // rule of the default deny
	named   bool
}

type clause struct {
	*Rule
	number uint32
	tier   Tier
	own    bool     // it matches the pods' own node instead of peers
	blocks []*block // of its peers
	terms  int      // of the selectors of its peers
	named  bool     // some ports have a name
}

// ruleSet holds the rules of the policies that select a pod, in one direction. Pods with the same policies share one.
type ruleSet struct {
	number    uint32
	namespace string // of the NetworkPolicies; "" if there are none
	d         Direction
	clauses   []*clause
	deny      uint32
	isolated  bool
	ports     []NamedPort // the pods' own, on ingress
}

// number returns the number of a digest. A new one is above from, and not in use.
func (c *compiler) number(d Digest, from uint32) uint32 {
	if number, ok := c.rows.Numbers[d]; ok {
		return number
	}
	number, ok := c.have[d]
	for !ok {
		c.last++
		number = from + c.last
		ok = !c.taken[number]
	}
	c.rows.Numbers[d] = number
	return number
}

// Units of work of compiling, see [MostWork].
const (
	rowWork   = 8
	portWork  = 8
	podWork   = 16
	askedWork = 4
)

const workUnits = "units of compile work"

func (c *compiler) spend(n int) bool {
	c.work += n
	return !c.exhausted()
}

// use spends work for the rule set's own rules, without rules of other namespaces.
func (c *compiler) use(set *ruleSet, n int) bool {
	c.meter.use(set.namespace, n)
	return c.spend(n)
}

func (c *compiler) exhausted() bool {
	return c.limit > 0 && c.work > c.limit || c.meter != nil && c.meter.full
}

// meter counts the rows of each namespace. In a rule set, a namespace pays for as many rows as its rules distinguish
// classes of peers: not for what others add to its rule sets. ClusterNetworkPolicies have namespace "" and no quota.
type meter struct {
	limit   Quota
	made    map[string]*Quota // by namespace
	full    bool              // a namespace has used its work: counting can stop
	owners  map[*block]map[string]int
	seed    maphash.Seed
	covers  map[*cover]map[string]uint64 // how namespaces sort by blocks
	classes map[*identity]map[string]uint64
	tables  map[class]bool // of ports, in the rule sets of a namespace
	foreign map[class]int  // in how many rule sets of other namespaces a class has counted

	namespace string         // of the rule set that is filled
	seen      map[class]bool // in its rows
}

// class is a class of peers that the rules of a namespace distinguish by labels and blocks; 0: by none.
type class struct {
	namespace string
	sort      uint64
}
