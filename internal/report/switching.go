// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"mustang/internal/result"
)

// switched is an entry of the suite on switching, whose ID is made of the place,
// the switch and the kind of pod.
type switched struct {
	*entry
	place, by, pod string
}

// placeWords and podWords put the parts of such an ID in words.
func placeWords() []struct{ place, words string } {
	return []struct{ place, words string }{
		{"same-host", "On one host"}, {"two-hosts", "Across two hosts"}, {"vxlan", "Across two hosts with VXLAN"},
	}
}

func podWords(pod string) string {
	switch pod {
	case "veth":
		return "namespaces by veth"
	case "internal":
		return "namespaces by internal port against veth"
	case "vm":
		return "virtual machines"
	}
	return pod
}

// switched are the measured entries whose IDs have these three parts.
func (s *set) switched() []switched {
	var out []switched
	for _, e := range s.measured() {
		if parts := strings.Split(e.ID, "/"); len(parts) == 3 {
			out = append(out, switched{entry: e, place: parts[0], by: parts[1], pod: parts[2]})
		}
	}
	return out
}

// twin finds the measured entry in another place or at another switch that has the
// same kind of pod, or, of internal ports, which only one kind of switch has, that
// with veth.
func twin(all []switched, place, by, pod string) *switched {
	for _, kind := range []string{pod, "veth"} {
		i := slices.IndexFunc(all, func(w switched) bool { return w.place == place && w.by == by && w.pod == kind })
		if i >= 0 {
			return &all[i]
		}
		if pod != "internal" {
			break
		}
	}
	return nil
}

// switchingAnswer sets Open vSwitch against the bridge, VXLAN against none, and
// two hosts against one.
func (s *set) switchingAnswer() answer {
	all := s.switched()
	verdicts := map[verdict]int{}
	var more []string
	for _, p := range placeWords() {
		var parts []string
		for _, w := range all {
			if other := twin(all, p.place, "bridge", w.pod); w.place == p.place && w.by == "ovs" && other != nil {
				d := s.difference(w.entry, other.entry)
				verdicts[d.verdict]++
				parts = append(parts, podWords(w.pod)+": "+s.says(d))
			}
		}
		if len(parts) > 0 {
			more = append(more, p.words+", Open vSwitch against a bridge: "+strings.Join(parts, "; ")+".")
		}
	}
	more = append(more,
		s.placed(all, "ovs-bridge", "Open vSwitch's VXLAN below a bridge, against the bridge's own: ", func(w switched) *switched {
			return twin(all, w.place, "bridge", w.pod)
		}),
		s.placed(all, "", "VXLAN, against the same without: ", func(w switched) *switched {
			if w.place != "vxlan" {
				return nil
			}
			return twin(all, "two-hosts", w.by, w.pod)
		}),
		s.placed(all, "", "Two hosts, against the same on one: ", func(w switched) *switched {
			if w.place != "two-hosts" {
				return nil
			}
			return twin(all, "same-host", w.by, w.pod)
		}), s.bridgedHost())
	more = slices.DeleteFunc(more, func(line string) bool { return line == "" })
	return answer{Name: s.name, Lead: s.switches(verdicts) + s.missing(), More: more}
}

// placed says how entries stand to their others: the least and the greatest
// difference in each direction.
func (s *set) placed(all []switched, by, words string, other func(switched) *switched) string {
	type named struct {
		name string
		difference
	}
	groups := map[verdict][]named{}
	for _, w := range all {
		if by != "" && w.by != by {
			continue
		}
		if o := other(w); o != nil && o.entry != w.entry {
			d := s.difference(w.entry, o.entry)
			groups[d.verdict] = append(groups[d.verdict], named{together(w.by + "/" + w.pod + w.guestMark()), d})
		}
	}
	var parts []string
	for _, v := range []verdict{lower, higher, tied, tooFew} {
		group := groups[v]
		slices.SortStableFunc(group, func(a, b named) int { return cmp.Compare(math.Abs(a.ratio-1), math.Abs(b.ratio-1)) })
		var names []string
		for _, n := range group {
			names = append(names, n.name)
		}
		switch {
		case len(group) == 0:
		case v == tied || v == tooFew:
			parts = append(parts, s.says(group[0].difference)+" ("+strings.Join(names, ", ")+")")
		case len(group) == 1:
			parts = append(parts, names[0]+" "+s.says(group[0].difference))
		default:
			first, last := group[0], group[len(group)-1]
			parts = append(parts, fmt.Sprintf("%s (%s) to %s", percent(math.Abs(first.ratio-1)), first.name,
				s.reading.words(v, result.Comparison{Ratio: last.ratio})+" ("+last.name+")"))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return words + strings.Join(parts, "; ") + "."
}

// bridgedHost says what a bridge costs the host itself.
func (s *set) bridgedHost() string {
	a, b := s.entry("two-hosts/host-bridge"), s.entry("two-hosts/host")
	if a == nil || b == nil || !a.ok() || !b.ok() {
		return ""
	}
	return "From host to host, the address on a bridge against the uplink's own: " + s.says(s.difference(a, b)) + "."
}

// switches sums the verdicts on Open vSwitch over the bridge up.
func (s *set) switches(verdicts map[verdict]int) string {
	total := verdicts[lower] + verdicts[higher] + verdicts[tied] + verdicts[tooFew]
	switch total {
	case 0:
		return "no way over Open vSwitch has a figure beside its way over a bridge."
	case verdicts[tied]:
		return fmt.Sprintf("no difference was found between %s and a Linux bridge in %s.", s.openVSwitch(), count(total, "pair"))
	case verdicts[tooFew]:
		return "too few rounds to say which of " + s.openVSwitch() + " and a Linux bridge is the better."
	}
	ahead, behind := "faster", "slower"
	better, worse := verdicts[higher], verdicts[lower]
	if s.reading.counted {
		ahead, behind = "takes fewer instructions", "more"
		better, worse = worse, better
	} else {
		ahead = "is " + ahead
	}
	text := fmt.Sprintf("of %s, %s %s than a Linux bridge in %s and %s in %s; no difference was found in %s",
		count(total, "pair"), s.openVSwitch(), ahead, orNone(better), behind, orNone(worse), orNone(verdicts[tied]))
	if n := verdicts[tooFew]; n > 0 {
		text += fmt.Sprintf(", and %d had too few rounds", n)
	}
	return text + "."
}

// orNone is a number in a sentence.
func orNone(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

// userSpace is in the variant of rows over Open vSwitch's datapath in user space.
const userSpace = "user-space"

// openVSwitch names the switch, with its datapath where that is the slow one in all
// rows.
func (s *set) openVSwitch() string {
	name := "Open vSwitch"
	for _, w := range s.switched() {
		if strings.HasPrefix(w.by, "ovs") {
			if !strings.Contains(w.Variant, userSpace) {
				return "Open vSwitch"
			}
			name = "Open vSwitch (in user space)"
		}
	}
	return name
}

// variants makes the column of what the IDs of the suite on switching don't say.
func (s *set) variants() column {
	if s.suite != suiteSwitching {
		return column{}
	}
	return s.text(6, func(e *entry) string {
		if e.Variant == "" || e.Variant == again {
			return none
		}
		return clean(e.Variant)
	}, "variant")
}
