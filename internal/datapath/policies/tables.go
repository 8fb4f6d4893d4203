// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
)

// Rows as bpf/mustang/policy.h has them.
type (
	settings struct {
		Lengths      [129]uint8 // of the prefixes in identities but for whole addresses, the longest first
		Count, Audit uint8
		Reserved     [5]uint8
	}
	// follows is what rows follow.
	follows struct {
		Digest   [32]byte // of the files of policies; zero: none
		Changing uint8    // a process changes rows, or was killed while it did
		Reserved [103]uint8
	}
	prefix struct {
		Addr   [16]byte
		Length uint32
	}
	verdictKey struct{ Set, Identity uint32 }
	verdict    struct{ Rule, Table, Lengths, Allow uint32 }
	portKey    struct {
		Table         uint32
		Port          uint16
		Proto, Length uint8
	}
	portVerdict struct{ Rule, Allow uint32 }
)

// followsRow is the row of policy_settings that tells what rows follow.
const followsRow = uint32(2)

// tables are the maps of policies.
type tables struct {
	settings   *objects.Table[uint32, settings] // two rows, of which the filter names one
	follows    *objects.Table[uint32, follows]  // the third row
	identities *objects.Table[prefix, uint32]
	verdicts   *objects.Table[verdictKey, verdict]
	ports      *objects.Table[portKey, portVerdict]
	numbers    *objects.Table[policy.Digest, uint32]
}

// tables returns the maps, which are open.
func (p Policies) tables() tables {
	return tables{
		table[uint32, settings](p, "policy_settings"), table[uint32, follows](p, "policy_settings"),
		table[prefix, uint32](p, "identities"), table[verdictKey, verdict](p, "verdicts"),
		table[portKey, portVerdict](p, "policy_ports"), table[policy.Digest, uint32](p, "policy_numbers"),
	}
}

func table[K comparable, V any](p Policies, name string) *objects.Table[K, V] {
	return &objects.Table[K, V]{Map: p.Objects.Policies[name], Name: name}
}
