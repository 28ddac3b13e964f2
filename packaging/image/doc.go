// Command image writes the node image as an OCI layout, and the same as one file: image OUTDIR NAME
// VERSION REVISION ARCH=DIR... . The directories have the files of that architecture, as build.sh
// stages them. It needs no base image, and SOURCE_DATE_EPOCH is the time of all files.
package main
