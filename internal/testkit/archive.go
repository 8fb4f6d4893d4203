// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"testing"
)

// ReadArchive returns the texts of the files in a tar.gz by their names.
func ReadArchive(t testing.TB, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	Succeed(t, err)
	defer file.Close()
	return Unpack(t, file)
}

// Unpack is ReadArchive for a stream.
func Unpack(t testing.TB, from io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(from)
	Succeed(t, err)
	all := map[string]string{}
	for files := tar.NewReader(zip); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		data, failed := io.ReadAll(files)
		if err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		all[header.Name] = string(data)
	}
}
