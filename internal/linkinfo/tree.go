// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const treeWidth = 100 // the number of columns that lines are wrapped to where possible

type tree struct {
	Inventory
	below  map[int][]Link // by the index of their bridge or parent
	done   map[int]bool
	lines  []treeLine
	widths [6]int // of columns
}

// treeLine has the columns of a link, or text below them.
type treeLine struct {
	columns []string
	text    string
}

// WriteTree writes a tree per namespace: ports below their bridge, and macvlan, ipvlan and VLAN devices below their
// parent, with the details of each link.
func WriteTree(w io.Writer, inventories []Inventory) error {
	var texts []string
	for _, inventory := range inventories {
		t := tree{Inventory: inventory, below: map[int][]Link{}, done: map[int]bool{}}
		t.row("INTERFACE", "KIND", "STATE", "MTU", "SPEED", "JOINED TO")
		for _, l := range t.Links {
			t.below[top(l)] = append(t.below[top(l)], l)
		}
		// First links below nothing, then the remaining ones: cycles, and links whose parent was deleted meanwhile.
		for _, l := range append(slices.Clone(t.below[0]), t.Links...) {
			t.add(l, "", "", "")
		}
		texts = append(texts, t.String())
	}
	_, err := io.WriteString(w, strings.Join(texts, "\n"))
	return err
}

// top returns the index of the bridge or parent that a link is printed below; or 0.
func top(l Link) int {
	switch {
	case l.Master != "":
		return l.MasterIndex
	case l.Parent != nil && l.Parent.Namespace == nil && l.Parent.Name != "":
		return l.Parent.Index
	}
	return 0
}

func (t *tree) row(columns ...string) {
	for i, text := range columns {
		columns[i] = Printable(text)
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(columns[i]))
	}
	t.lines = append(t.lines, treeLine{columns: columns})
}

// add adds a link unless it is there, below the link of that name. The prefixes are its own, and of the lines below it.
func (t *tree) add(l Link, below, first, rest string) {
	if t.done[l.Index] {
		return
	}
	t.done[l.Index] = true
	t.row(first+l.Name, kindText(l.Kind, l.Mode), stateText(l), strconv.Itoa(l.MTU), speedText(l.Hardware.Speed),
		joinedText(l, below))
	ports := slices.DeleteFunc(slices.Clone(t.below[l.Index]), func(port Link) bool { return t.done[port.Index] })
	left := len(ports) + len(l.Children)
	bar := "    "
	if left > 0 {
		bar = "|   "
	}
	for _, items := range details(l) {
		for _, line := range wrap(items, treeWidth-len(rest+bar)-2) {
			t.lines = append(t.lines, treeLine{text: rest + bar + "  " + line})
		}
	}
	branch := func() (own, below string) {
		if left--; left == 0 {
			return rest + "`-- ", rest + "    "
		}
		return rest + "|-- ", rest + "|   "
	}
	for _, port := range ports {
		own, below := branch()
		t.add(port, l.Name, own, below)
	}
	for _, child := range l.Children {
		own, _ := branch()
		t.row(own+child.Name, kindText(child.Kind, child.Mode), "", "", "", "in "+child.Namespace.String())
	}
}

func details(l Link) [][]string {
	identity := convert(l.Addrs, netip.Prefix.String)
	if len(l.MAC) > 0 {
		identity = append(identity, "mac "+l.MAC.String())
	}
	settings := settingsText(l.Settings)
	if port := settingsText(l.Port); len(port) > 0 {
		port[0] = "port " + port[0]
		settings = append(settings, port...)
	}
	queues := fmt.Sprintf("queues %d tx %d rx, qdisc %s", l.TxQueues, l.RxQueues, l.Qdisc)
	out := [][]string{identity, settings, {offloadsText(l), queues}, convert(l.Programs, programText)}
	if len(l.AltNames) > 0 {
		out = append(out, []string{"altname " + strings.Join(l.AltNames, ", ")})
	}
	if l.Alias != "" {
		out = append(out, []string{"alias " + strconv.Quote(l.Alias)})
	}
	return out
}

func (t *tree) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "network namespace %s (inode %d)\n", Printable(t.Namespace.String()), t.Namespace.Inode)
	for _, line := range t.lines {
		text := Printable(line.text)
		for i, column := range line.columns {
			text += fmt.Sprintf("%-*s", t.widths[i]+2, column)
		}
		fmt.Fprintln(&out, strings.TrimRight(text, " "))
	}
	return out.String()
}

func wrap(items []string, width int) (lines []string) {
	for i, item := range items {
		if i < len(items)-1 {
			item += ","
		}
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(item) <= width {
			lines[last] += " " + item
		} else {
			lines = append(lines, item)
		}
	}
	return lines
}
