// SPDX-License-Identifier: Apache-2.0

package policy

// smallSubject is how many bytes a selector of pods may have that [Policy.Strip] leaves.
const smallSubject = 4096

// Bulk returns how large that is which [Policy.Strip] takes away, in bytes, about as it is stored.
func (p *Policy) Bulk() int {
	var f form
	for _, rules := range [][]Rule{p.Ingress, p.Egress} {
		for i := range rules {
			f.rule(&rules[i])
		}
	}
	return len(f) + p.largeSubject()
}

// Strip takes away the rules of a NetworkPolicy, so that it isolates its pods and allows nothing. One whose selector is large selects all
// pods of its namespace then.
func (p *Policy) Strip() {
	if p.largeSubject() > 0 {
		p.Subject.Pods = Selector{}
	}
	p.Ingress, p.Egress = nil, nil
}

// largeSubject returns the size of the selector of pods, 0 if it is small.
func (p *Policy) largeSubject() int {
	var f form
	if f.selector(p.Subject.Pods); len(f) <= smallSubject {
		return 0
	}
	return len(f)
}
