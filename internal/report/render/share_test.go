// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"strings"
	"testing"

	"mustang/internal/report"
	"mustang/internal/report/render"
	"mustang/internal/testkit"
)

// TestShare reads the picture and the text back: both forms of the picture have each line of the answer.
func TestShare(t *testing.T) {
	shared := testkit.Must(render.Share(testkit.Must(report.New(read(t, "recorded-links")))(t)))(t)
	var text, vector, raster bytes.Buffer
	testkit.Succeed(t, errors.Join(shared.Markdown(&text), shared.SVG(&vector), shared.PNG(&raster)))
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(text.String(), "```text\n"), "\n```\n"), "\n")
	for _, want := range []string{"mustang bench pod-links", "macvlan is the fastest for requests", "veth+eBPF "} {
		testkit.Check(t, strings.Contains(text.String(), want), "the text lacks %q: %s", want, text.String())
	}
	var words strings.Builder
	for decoder := xml.NewDecoder(&vector); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.Succeed(t, err)
		if data, ok := token.(xml.CharData); ok {
			words.Write(data)
		}
	}
	picture := testkit.Must(png.Decode(&raster))(t)
	for i, line := range lines {
		testkit.Check(t, strings.Contains(words.String(), line+"\n"), "share.svg lacks %q", line)
		dark := 0
		for x := range picture.Bounds().Dx() {
			for y := 44 + i*31 + 12; y < 44+(i+1)*31+6; y++ {
				if r, _, _, _ := picture.At(x, y).RGBA(); r < 0x8000 {
					dark++
				}
			}
		}
		letters := len(strings.ReplaceAll(line, " ", ""))
		testkit.Check(t, dark >= 8*letters, "share.png has %d dark pixels for %d letters of %q", dark, letters, line)
	}
}
