// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"

	"mustang/internal/nl"
)

// treeWidth is the width that trees are broken to, where that can be done.
const treeWidth = 100

// treeLine is a line of a tree: a link with its columns, or text below one.
type treeLine struct {
	columns []string
	text    string
}

// linksTree lays out the links of one namespace.
type linksTree struct {
	inventory inventory
	below     map[int][]nl.Link // by the index of what they stand below
	done      map[int]bool
	lines     []treeLine
}

// printLinksTree writes a tree per namespace.
func printLinksTree(w io.Writer, inventories []inventory) error {
	for i, inventory := range inventories {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		t := linksTree{inventory: inventory, below: map[int][]nl.Link{}, done: map[int]bool{}}
		t.build()
		if err := t.print(w); err != nil {
			return err
		}
	}
	return nil
}

// build puts each link below its bridge, else below its parent.
func (t *linksTree) build() {
	names := map[int]string{}
	for _, l := range t.inventory.links {
		names[l.Index] = l.Name
		t.below[top(l)] = append(t.below[top(l)], l)
	}
	for _, l := range t.below[0] {
		t.add(l, "", "")
	}
	// What stands below itself, or below what is gone by now.
	for _, l := range t.inventory.links {
		if !t.done[l.Index] {
			t.add(l, "", "")
		}
	}
}

// top is the index of the link that another one stands below; or 0.
func top(l nl.Link) int {
	switch {
	case l.Master != "":
		return l.MasterIndex
	case l.Parent != nil && l.Parent.Place == nil && l.Parent.Name != "":
		return l.Parent.Index
	}
	return 0
}

// add adds a link with all that stands below it. first starts its own line, rest
// those below.
func (t *linksTree) add(l nl.Link, first, rest string) {
	t.done[l.Index] = true
	below := ""
	if first != "" {
		below = nameOf(t.inventory.links, top(l))
	}
	t.lines = append(t.lines, treeLine{columns: []string{
		first + l.Name, kindText(l.Kind, l.Mode), stateText(l), strconv.Itoa(l.MTU), speedText(l.Hardware.Speed),
		joinedText(l, below),
	}})
	var ports []nl.Link
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
			rest + branch + child.Name, kindText(child.Kind, child.Mode), "", "", "", "in " + child.Place.String(),
		}})
	}
}

func nameOf(links []nl.Link, index int) string {
	for _, l := range links {
		if l.Index == index {
			return l.Name
		}
	}
	return ""
}
