// SPDX-License-Identifier: Apache-2.0

package report

// standing is how ranked rows compare with the best of them.
type standing struct {
	// best are the row with the best figure and those tied with it, down to the first that is worse.
	best []*entry
	// apart are the others that the run cannot tell from it: figures far apart, rows that lost datagrams, and rows in which no
	// difference was found though they rank below one that is worse, since their intervals are wider.
	apart []*entry
	// few have too few rounds to be compared, or are of too few themselves.
	few []*entry
	// worse are those that a difference was found in.
	worse []*entry
}

// standing compares ranked rows with the first.
func (t *workloadTable) standing(ranked []*entry) standing {
	var s standing
	for i, e := range ranked {
		if i == 0 {
			s.best = []*entry{e}
			continue
		}
		switch v := t.difference(s.best[0], e).verdict; {
		case v == tooFew:
			s.few = append(s.few, e)
		case v == lower || v == higher:
			s.worse = append(s.worse, e)
		case v == tied && len(s.worse) == 0:
			s.best = append(s.best, e)
		default:
			s.apart = append(s.apart, e)
		}
	}
	return s
}

// judged reports whether the best row was compared with any other.
func (s standing) judged() bool { return len(s.best)+len(s.apart)+len(s.worse) > 1 }

// namedAll are the names of entries, with the loss of those that lost much.
func namedAll(entries []*entry) []string {
	var out []string
	for _, e := range entries {
		out = append(out, e.named())
	}
	return out
}
