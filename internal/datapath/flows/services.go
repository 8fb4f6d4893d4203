// SPDX-License-Identifier: Apache-2.0

package flows

import "mustang/internal/datapath/objects"

// ServiceTraffic counts packets translated for a service, to its backends and back, without socket translation.
type ServiceTraffic struct{ To, Back objects.Traffic }

// ServiceTraffic returns the traffic of services, by ID. Services that share one of the objects.CountedServices rows
// of counters are missing. It takes no lock.
func (f Flows) ServiceTraffic() (map[uint32]ServiceTraffic, error) {
	byRow := map[uint32][]uint32{}
	for row, err := range f.Objects.Services.All() {
		if err != nil {
			return nil, err
		}
		counted := row.Value.CountsRow()
		byRow[counted] = append(byRow[counted], row.Value.Id)
	}
	all := make(map[uint32]ServiceTraffic, len(byRow))
	for row, ids := range byRow {
		if len(ids) > 1 {
			continue
		}
		to, back, err := f.Objects.CountsOf(row)
		if err != nil {
			return nil, err
		}
		all[ids[0]] = ServiceTraffic{to, back}
	}
	return all, nil
}
