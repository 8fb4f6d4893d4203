// SPDX-License-Identifier: Apache-2.0

// Program image packs static programs as a container image of one layer, without a daemon: an OCI layout in an archive, with
// the manifest that `docker load` of Docker before 25 reads beside it. `ctr images import`, podman and tools that push to
// registries read it too. The first program is the image's command. Its time is SOURCE_DATE_EPOCH.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	output := flag.String("o", "", "`file` to write")
	var o options
	flag.StringVar(&o.tag, "tag", "", "`name` and tag of the image")
	flag.StringVar(&o.arch, "arch", "amd64", "`architecture` of the programs")
	flag.StringVar(&o.version, "version", "", "`version` of the programs")
	flag.StringVar(&o.root, "root", "", "`directory` with more files of the image")
	flag.Func("doc", "`file` for usr/share/doc/mustang; repeat for more", func(file string) error { o.docs = append(o.docs, file); return nil })
	flag.Parse()
	if err := pack(*output, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// options are the name and contents of an image.
type options struct {
	tag, arch, version, root string
	docs                     []string
}

func pack(output string, o options, programs []string) error {
	ref, err := name.NewTag(o.tag)
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
	files, err := archive(programs, o, created)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "make image"}})
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config.Architecture, config.OS, config.Created = o.arch, "linux", v1.Time{Time: created}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/" + filepath.Base(programs[0])}, Env: []string{"PATH=/usr/sbin:/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "mustang", "org.opencontainers.image.licenses": "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
			"org.opencontainers.image.version": o.version,
		},
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return write(output, ref, image, created)
}

// containerdName returns the name as containerd and the kubelet have it, who say docker.io for Docker's registry.
func containerdName(ref name.Tag) string {
	if rest, ok := strings.CutPrefix(ref.Name(), name.DefaultRegistry+"/"); ok {
		return "docker.io/" + rest
	}
	return ref.Name()
}

// write writes the archive: the files of an OCI layout, and manifest.json for Docker.
func write(output string, ref name.Tag, image v1.Image, modified time.Time) error {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	err = files.AppendImage(image, layout.WithPlatform(v1.Platform{OS: config.OS, Architecture: config.Architecture}), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": ref.TagStr(), "io.containerd.image.name": containerdName(ref),
	}))
	if err != nil {
		return err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(d v1.Descriptor) string { return path.Join("blobs", d.Digest.Algorithm, d.Digest.Hex) }
	docker, err := json.Marshal(tarball.Manifest{{Config: blob(manifest.Config), RepoTags: []string{ref.String()}, Layers: []string{blob(manifest.Layers[0])}}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), docker, 0o644); err != nil {
		return err
	}
	out, err := os.Create(output)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := tarDirectory(out, dir, modified); err != nil {
		return err
	}
	return out.Close()
}

// tarDirectory writes the files of a directory, in the order of their names.
func tarDirectory(out io.Writer, dir string, modified time.Time) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		in, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: in, Mode: 0o644, Size: int64(len(data)), ModTime: modified, Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	return errors.Join(err, w.Close())
}

// archive returns a tar archive with the programs in usr/bin, documents, directories for temporary files, namespaces and labs, and
// the files below o.root.
func archive(programs []string, o options, modified time.Time) ([]byte, error) {
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
	for _, dir := range []tar.Header{{Name: "run/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777}, {Name: "usr/", Mode: 0o755}, {Name: "usr/bin/", Mode: 0o755},
		{Name: "usr/share/", Mode: 0o755}, {Name: "usr/share/doc/", Mode: 0o755}, {Name: "usr/share/doc/mustang/", Mode: 0o755}} {
		dir.Typeflag = tar.TypeDir
		if err := add(dir, nil); err != nil {
			return nil, err
		}
	}
	put := func(files []string, dir string, mode int64) error {
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err == nil {
				err = add(tar.Header{Typeflag: tar.TypeReg, Name: dir + filepath.Base(file), Mode: mode}, data)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(put(programs, "usr/bin/", 0o755), put(o.docs, "usr/share/doc/mustang/", 0o644), addRoot(o.root, add)); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

// addRoot adds the files and links below root, in the order of their names. Their directories are made when they are unpacked.
func addRoot(root string, add func(tar.Header, []byte) error) error {
	if root == "" {
		return nil
	}
	return filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		h := tar.Header{Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm())}
		if h.Name, err = filepath.Rel(root, file); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			h.Typeflag = tar.TypeSymlink
			h.Linkname, err = os.Readlink(file)
			return errors.Join(err, add(h, nil))
		}
		data, err := os.ReadFile(file)
		return errors.Join(err, add(h, data))
	})
}
