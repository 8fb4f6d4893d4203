// SPDX-License-Identifier: Apache-2.0

package html

import (
	"image/color"
	"strings"
)

// ink is a color of a chart by its role. The drawing library knows only fixed
// colors. Charts are drawn with one placeholder color per role, which CSS variables
// then replace, so that one chart serves light, dark and paper.
type ink uint8

const (
	inkText ink = iota + 1
	inkMuted
	inkGrid
	inkBand
	inkSurface
	inkGray
	inkSlate
	inkOrange
	inkPurple
	inkBlue
	inkTeal
	inkOlive
)

// inks names the CSS variable of each role.
func inks() map[ink]string {
	return map[ink]string{
		inkText: "--text", inkMuted: "--muted", inkGrid: "--grid", inkBand: "--band", inkSurface: "--surface",
		inkGray: "--gray", inkSlate: "--slate", inkOrange: "--orange", inkPurple: "--purple",
		inkBlue: "--blue", inkTeal: "--teal", inkOlive: "--olive",
	}
}

// inkOf returns the ink of a series.
func inkOf(color string) ink {
	for i, name := range inks() {
		if name == "--"+color {
			return i
		}
	}
	return inkSlate
}

// color is the placeholder.
func (i ink) color() color.Color { return color.RGBA{R: 1, B: uint8(i), A: 255} }

// recolor replaces the placeholders in an SVG document.
func recolor(svg string) string {
	const digits = "0123456789ABCDEF"
	var pairs []string
	for i, name := range inks() {
		standIn := "#0100" + string(digits[i>>4]) + string(digits[i&15])
		pairs = append(pairs, standIn, "var("+name+")")
	}
	return strings.NewReplacer(pairs...).Replace(svg)
}
