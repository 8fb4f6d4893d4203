// SPDX-License-Identifier: Apache-2.0

package policy

// Share replaces labels by equal maps in shared, from other snapshots: pods of one workload and policies of one
// namespace often have equal labels, and a map takes hundreds of bytes. The maps must not be edited afterwards.
func (s *Snapshot) Share(shared map[Digest]map[string]string) {
	labels := func(of *map[string]string) { share(of, shared) }
	for i := range s.Nodes {
		labels(&s.Nodes[i].Labels)
	}
	for i := range s.Namespaces {
		labels(&s.Namespaces[i].Labels)
	}
	for i := range s.Pods {
		labels(&s.Pods[i].Labels)
	}
	for i := range s.Policies {
		for of := range s.Policies[i].selectors {
			labels(&of.Labels)
		}
	}
}

func share(of *map[string]string, shared map[Digest]map[string]string) {
	if len(*of) == 0 {
		return
	}
	f := newForm("labels")
	f.labels(*of)
	id := f.digest()
	had, ok := shared[id]
	if !ok {
		shared[id] = *of
		return
	}
	*of = had
}
