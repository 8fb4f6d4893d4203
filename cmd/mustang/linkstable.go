// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strconv"
	"strings"
)

// printLinksTable writes a row per link, sorted by index.
func printLinksTable(w io.Writer, inventories []inventory) error {
	header := []string{"INDEX", "NAME", "KIND", "STATE", "MTU", "SPEED", "MAC", "JOINED TO", "ADDRESSES", "PROGRAMS"}
	if len(inventories) > 1 {
		header = append([]string{"NAMESPACE"}, header...)
	}
	var rows [][]string
	for _, inventory := range inventories {
		for _, l := range inventory.links {
			var addresses, programs []string
			for _, a := range l.Addrs {
				addresses = append(addresses, a.String())
			}
			for _, p := range inventory.programs[l.Index] {
				programs = append(programs, programText(p))
			}
			row := []string{
				strconv.Itoa(l.Index), l.Name, kindText(l.Kind, l.Mode), stateText(l), strconv.Itoa(l.MTU),
				speedText(l.Hardware.Speed), orDash(l.MAC.String()), orDash(joinedText(l, "")),
				orDash(strings.Join(addresses, ",")), orDash(strings.Join(programs, ", ")),
			}
			if len(inventories) > 1 {
				row = append([]string{inventory.place.String()}, row...)
			}
			rows = append(rows, row)
		}
	}
	return printTable(w, header, rows)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
