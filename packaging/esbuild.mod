// The modules of esbuild, which bundles the page's JavaScript (make page). They are kept out
// of go.mod: nothing that is built here has any of them in it. For another version:
//
//	go get -modfile=packaging/esbuild.mod -tool github.com/evanw/esbuild/cmd/esbuild@VERSION
module packaging

go 1.26.0

tool github.com/evanw/esbuild/cmd/esbuild

require (
	github.com/evanw/esbuild v0.28.2 // indirect
	golang.org/x/sys v0.0.0-20220715151400-c0bba94af5f8 // indirect
)
