# Images and video through FFmpeg, where its headers are. The libraries are opened when they are used
# (docs/decisions/0020), so nothing here links them.
find_path(BALLAST_FFMPEG_INCLUDE_DIR libavformat/avformat.h PATH_SUFFIXES ffmpeg)
set(ffmpeg_found OFF)
if(BALLAST_FFMPEG_INCLUDE_DIR)
  set(ffmpeg_found ON)
  foreach(header libavcodec/avcodec.h libavutil/avutil.h libswscale/swscale.h)
    if(NOT EXISTS ${BALLAST_FFMPEG_INCLUDE_DIR}/${header})
      set(ffmpeg_found OFF)
    endif()
  endforeach()
endif()
# Build folders of versions that had no media hold an OFF that nobody chose.
get_property(ballast_media_help CACHE BALLAST_MEDIA PROPERTY HELPSTRING)
if(ballast_media_help MATCHES "reserved")
  unset(BALLAST_MEDIA CACHE)
endif()
option(BALLAST_MEDIA "read and write images and video with FFmpeg" ${ffmpeg_found})
if(BALLAST_MEDIA AND NOT ffmpeg_found)
  message(FATAL_ERROR "BALLAST_MEDIA needs the headers of libavformat, libavcodec, libavutil and "
                      "libswscale: scripts/setup.sh installs them, or build with -DBALLAST_MEDIA=OFF")
endif()
