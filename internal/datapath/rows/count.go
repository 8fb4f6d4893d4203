// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"mustang/internal/service"
)

// Counts are numbers of rows of the maps of services.
type Counts struct {
	Services int
	// Backends includes the rows of source ranges.
	Backends int
	// Blocks are rows of look-up tables.
	Blocks, SourceRanges int
}

// Count returns how many rows a service takes. While it changes, it also takes its previous rows, except in Services.
func Count(s service.Service) Counts {
	services := 1
	if s.Protocol == service.Any {
		services = 2
	}
	all, local := TableEntries(s.Sorted())
	return Counts{services, len(s.Backends) + len(s.SourceRanges), (all + local) / MaglevBlock, len(s.SourceRanges)}
}

// Plus returns the sum of n and factor times more.
func (n Counts) Plus(more Counts, factor int) Counts {
	return Counts{n.Services + factor*more.Services, n.Backends + factor*more.Backends, n.Blocks + factor*more.Blocks,
		n.SourceRanges + factor*more.SourceRanges}
}
