// SPDX-License-Identifier: Apache-2.0

// Program image packs static programs as a container image of one layer, without a daemon: an archive for `docker load`,
// `ctr images import` and tools that push to registries. The first program is the image's command. Its time is SOURCE_DATE_EPOCH.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	output := flag.String("o", "", "`file` to write")
	tag := flag.String("tag", "", "`name` and tag of the image")
	arch := flag.String("arch", "amd64", "`architecture` of the programs")
	flag.Parse()
	if err := pack(*output, *tag, *arch, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func pack(output, tag, arch string, programs []string) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	if len(programs) == 0 {
		return fmt.Errorf("no program")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	created := time.Unix(seconds, 0).UTC()
	files, err := archive(programs, created)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		return err
	}
	image, err := mutate.Append(empty.Image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "make image"}})
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config.Architecture, config.OS, config.Created = arch, "linux", v1.Time{Time: created}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/" + filepath.Base(programs[0])}, Env: []string{"PATH=/usr/bin"},
		Labels: map[string]string{"org.opencontainers.image.title": "mustang", "org.opencontainers.image.licenses": "Apache-2.0"},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return tarball.WriteToFile(output, ref, image)
}

// archive returns a tar archive with the programs in usr/bin, and a directory for temporary files.
func archive(programs []string, modified time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, data []byte) error {
		h.ModTime, h.Size, h.Format = modified, int64(len(data)), tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, dir := range []tar.Header{{Name: "tmp/", Mode: 0o1777}, {Name: "usr/", Mode: 0o755}, {Name: "usr/bin/", Mode: 0o755}} {
		dir.Typeflag = tar.TypeDir
		if err := add(dir, nil); err != nil {
			return nil, err
		}
	}
	for _, path := range programs {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := add(tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/" + filepath.Base(path), Mode: 0o755}, data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
