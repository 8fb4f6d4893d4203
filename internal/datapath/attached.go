// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"

	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
)

// Attached returns the programs on devices of a network namespace by the devices' indexes, in the order in which they run.
func Attached(ns *netns.Namespace, links []linkinfo.Link) (map[int][]objects.AttachedProgram, error) {
	out := make(map[int][]objects.AttachedProgram)
	err := ns.Do(func() error {
		for _, l := range links {
			out[l.Index] = append(out[l.Index], objects.QueryPrograms(l.Index, l.Kind)...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("query programs in network namespace %q: %w", ns.Name(), err)
	}
	for _, l := range links {
		for _, ref := range l.Programs {
			out[l.Index] = append(out[l.Index], objects.AttachedProgram{Hook: ref.Hook, ID: ref.ID}.Describe())
		}
	}
	return out, nil
}
