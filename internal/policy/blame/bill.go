// SPDX-License-Identifier: Apache-2.0

package blame

import "slices"

// bill is what the policies of a namespace cost on the node.
type bill struct {
	name string // "": of the cluster
	who  int32  // its number
	// loses tells that it has something to lose.
	loses bool
	own   float64
	// asked is what of that is for labels for which rules ask.
	asked float64
	// brings is how many ranges, and how many kinds of pods and nodes, they tell apart; sets is how many of their rule sets meet those of others.
	brings, sets met
}

// met counts, by what it is, something that rule sets meet, or rule sets.
type met [3]float64

// What rule sets meet.
const (
	ofRanges = iota
	ofHosts
	ofListed // ranges in blocks of the cluster, for rule sets that have these blocks alone
)

// A node has room for the rows of so many rule sets that each meet so many ranges, or kinds of pods and nodes: 2¹⁸ rows. As many rule sets have the
// usual 110 pods of a node, by two directions.
const (
	manyBrought = 1 << 10
	manySets    = 1 << 8
)

// shareAsked divides what it costs together that rules ask for labels: several may ask for the same.
func shareAsked(bills []bill, together float64) {
	sum := 0.0
	for _, b := range bills {
		sum += b.asked
	}
	if sum <= together {
		return
	}
	for i := range bills {
		bills[i].own -= bills[i].asked * (1 - together/sum)
	}
}

// most returns the namespaces that cost most, one at least, and as many as have to go for the rest not to exceed the limit. hosts returns how many
// kinds of pods and nodes some tell apart together: fewer than the sum, as each is billed with all that it multiplies.
func (c costs) most(bills []bill, hosts func([]bill) int) (gone []string) {
	bills = slices.Clone(bills)
	for {
		kinds := 0
		if c.meeting > 0 {
			kinds = hosts(bills)
		}
		costs, all := c.shares(bills, float64(kinds))
		if len(gone) > 0 && all <= float64(c.limit) {
			return gone
		}
		next := -1
		for i, b := range bills {
			if b.loses && (next < 0 || costs[i] > costs[next]) {
				next = i
			}
		}
		if next < 0 {
			return gone
		}
		gone = append(gone, bills[next].name)
		bills = slices.Delete(bills, next, next+1)
	}
}

// shares returns what each costs, and all. Where rule sets of some meet what others tell apart, all who bring rule sets and all who tell apart pay for it as two
// sides, of which the one pays more that has more of what a node has room for: by the square, so that the other pays little. Within a side
// each pays its part. So nobody pays less, and others more, by ranges or rule sets that are spread over namespaces.
func (c costs) shares(bills []bill, hosts float64) (costs []float64, all float64) {
	var brought, sets met
	for _, b := range bills {
		for kind := range brought {
			brought[kind] += b.brings[kind]
			sets[kind] += b.sets[kind]
		}
	}
	scale := 1.0
	if brought[ofHosts] > hosts {
		scale, brought[ofHosts] = hosts/brought[ofHosts], hosts
	}
	costs = make([]float64, len(bills))
	for i, b := range bills {
		costs[i] = b.own
		b.brings[ofHosts] *= scale
		for kind := range brought {
			bringers, others := brought[kind]/manyBrought, sets[kind]/manySets
			bringers, others = bringers*bringers, others*others
			if part := bringers / (bringers + others); bringers > 0 {
				costs[i] += float64(c.meeting) * b.brings[kind] * (sets[kind] - b.sets[kind]) * part
			}
			if part := others / (bringers + others); others > 0 {
				costs[i] += float64(c.meeting) * b.sets[kind] * (brought[kind] - b.brings[kind]) * part
			}
		}
		all += costs[i]
	}
	return costs, all
}
