// SPDX-License-Identifier: Apache-2.0

package linkinfo

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// treeWidth is the number of columns that lines are wrapped to where possible.
const treeWidth = 100

// treeLine is a line of a tree: the columns of a link, or text below them.
type treeLine struct {
	columns []string
	text    string
}

// tree lays out the links of one namespace.
type tree struct {
	Inventory
	below map[int][]Link // by the index of their bridge or parent
	done  map[int]bool
	lines []treeLine
}

// WriteTree writes a tree per namespace: ports below their bridge, and macvlan, ipvlan and VLAN devices below their
// parent, with the details of each link.
func WriteTree(w io.Writer, inventories []Inventory) error {
	for i, inventory := range inventories {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		header := treeLine{columns: []string{"INTERFACE", "KIND", "STATE", "MTU", "SPEED", "JOINED TO"}}
		t := tree{inventory, map[int][]Link{}, map[int]bool{}, []treeLine{header}}
		for _, l := range t.Links {
			t.below[top(l)] = append(t.below[top(l)], l)
		}
		// First links below nothing, then the remaining ones: cycles, and links whose parent was deleted meanwhile.
		for _, l := range append(slices.Clone(t.below[0]), t.Links...) {
			if !t.done[l.Index] {
				t.add(l, "", "")
			}
		}
		if err := t.print(w); err != nil {
			return err
		}
	}
	return nil
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

// add adds a link and the links below it. first is the prefix of its own line, rest of the lines below.
func (t *tree) add(l Link, first, rest string) {
	t.done[l.Index] = true
	below := ""
	if first != "" {
		below = nameOf(t.Links, top(l))
	}
	t.lines = append(t.lines, treeLine{columns: []string{
		first + l.Name, kindText(l.Kind, l.Mode), stateText(l), strconv.Itoa(l.MTU), speedText(l.Hardware.Speed),
		joinedText(l, below),
	}})
	var ports []Link
	for _, port := range t.below[l.Index] {
		if !t.done[port.Index] {
			ports = append(ports, port)
		}
	}
	bar := "    "
	if len(ports)+len(l.Children) > 0 {
		bar = "|   "
	}
	for _, items := range t.details(l) {
		for _, line := range wrap(items, treeWidth-len(rest+bar)-2) {
			t.lines = append(t.lines, treeLine{text: rest + bar + "  " + line})
		}
	}
	for i, port := range ports {
		branch, next := "|-- ", "|   "
		if i == len(ports)-1 && len(l.Children) == 0 {
			branch, next = "`-- ", "    "
		}
		t.add(port, rest+branch, rest+next)
	}
	for i, child := range l.Children {
		branch := "|-- "
		if i == len(l.Children)-1 {
			branch = "`-- "
		}
		t.lines = append(t.lines, treeLine{columns: []string{
			rest + branch + child.Name, kindText(child.Kind, child.Mode), "", "", "", "in " + child.Namespace.String(),
		}})
	}
}

// details returns the lines below a link, each as a list that can be wrapped.
func (t *tree) details(l Link) [][]string {
	identity := texts(l.Addrs, netip.Prefix.String)
	if len(l.MAC) > 0 {
		identity = append(identity, "mac "+l.MAC.String())
	}
	settings := settingsText(l.Settings)
	for i, port := range settingsText(l.Port) {
		if i == 0 {
			port = "port " + port
		}
		settings = append(settings, port)
	}
	out := [][]string{identity, settings, {offloadsText(l), fmt.Sprintf("queues %d tx %d rx, qdisc %s", l.TxQueues,
		l.RxQueues, l.Qdisc)},
		texts(l.Programs, programText)}
	if len(l.AltNames) > 0 {
		out = append(out, []string{"altname " + strings.Join(l.AltNames, ", ")})
	}
	if l.Alias != "" {
		out = append(out, []string{"alias " + strconv.Quote(l.Alias)})
	}
	return out
}

// print writes the lines with their columns aligned.
func (t *tree) print(w io.Writer) error {
	var table, out strings.Builder
	tab := tabwriter.NewWriter(&table, 0, 8, 2, ' ', 0)
	for _, line := range t.lines {
		if line.columns != nil {
			writeRow(tab, line.columns)
		}
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	rows := strings.Split(table.String(), "\n")
	fmt.Fprintf(&out, "network namespace %s (inode %d)\n", Printable(t.Namespace.String()), t.Namespace.Inode)
	for _, line := range t.lines {
		text := Printable(line.text)
		if line.columns != nil {
			text, rows = rows[0], rows[1:]
		}
		fmt.Fprintln(&out, strings.TrimRight(text, " "))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// wrap joins items with commas, in lines of at most that width where possible.
func wrap(items []string, width int) []string {
	var lines []string
	for i, item := range items {
		if i < len(items)-1 {
			item += ","
		}
		last := len(lines) - 1
		if last >= 0 && len(lines[last])+1+len(item) <= width {
			lines[last] += " " + item
			continue
		}
		lines = append(lines, item)
	}
	return lines
}
